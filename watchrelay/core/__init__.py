"""What every room may use: errors, time, backoff, files, text. It receives plain values, returns
plain values, and imports no other room."""

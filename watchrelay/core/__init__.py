"""What every package may use: errors, time, backoff, files, text. It receives plain values, returns
plain values, and imports no other package."""

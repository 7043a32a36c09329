"""What every room may use: errors, the clock, backoff, files, text. Imports nothing of ours."""

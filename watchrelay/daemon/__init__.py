"""What runs for as long as the process does: the supervisor, one runner per stream, reload."""

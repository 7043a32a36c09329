"""One writer per stream: changes of the store in, records for the sink out, in order."""

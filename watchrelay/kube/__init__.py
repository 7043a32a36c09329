"""The Kubernetes API: selections, queries and credentials in, pages and frames out. Every failure
is an error of `core/errors.py`. HTTP codes, tokens and chunked lines are unknown outside."""

"""Room 1, kube: the API server's words. Nothing outside knows HTTP codes, tokens or chunked
lines."""

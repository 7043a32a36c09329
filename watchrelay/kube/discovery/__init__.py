"""API discovery: documents of the API server and resource names in, resources out."""

"""Which resources the API server has."""

"""Access to the API server: a kubeconfig or a service account in; endpoint, headers and TLS context
of the next request out. It does not know what the requests are for."""

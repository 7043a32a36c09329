"""Who we are to the API server and how we reach it: credentials, kubeconfig, exec plugins, TLS,
proxies."""

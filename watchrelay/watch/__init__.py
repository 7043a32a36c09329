"""Keep one resource followed: a pure machine decides, a loop acts, all streams of an endpoint pass
one turnstile."""

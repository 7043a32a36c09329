"""Metrics, logs, status and the admin server. In: what the other packages count, log and record in
the `StatusRegistry`. Out: HTTP answers to probes, scrapers, browsers and operators. It must not
know how streams are watched or published; it reads causes, never the text of messages."""

"""Keeps one resource watched. In: pages and frames of the API server. Out: events in order, each
delivered before the cursor moves past it. It must not know what an object contains, nor Kafka.
"""

"""Kafka: the sink, topics, the control and the signal topic, and readers of topics."""

"""The first minute: a synthetic cluster and an embedded Kafka, with the real relay between them."""

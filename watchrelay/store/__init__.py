"""Comes in: frames of a watch and of lists. Goes out: changes of the latest known state of a
stream, in the order to publish them, to a `ChangePublisher`. It knows nothing of partitions'
queues, Kafka or requests to the API server.
"""

"""Input: changes of the store, progress of the watch, and the recovered log. Output: batches
to the sink, claims and snapshot records to the control topic, metrics and status. One writer per
stream; it knows nothing of Kubernetes requests, Kafka clients or the config.
"""

"""Input: changes of the store, progress of the watch, and the recovered log. Output: batches
to the sink, claims and index records to the control topic, metrics and status. One writer per
stream or part; it knows nothing of Kubernetes requests, Kafka clients or the config.

A writer is named `spec.id`, with the part of a split stream (`pods%0/4`): on the control topic, in
log lines and errors. Records carry `spec.stream`, the name without the part; recovery compares
that.
"""

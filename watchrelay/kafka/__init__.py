"""Kafka: the sink that writes, the reader that reads, and the topics themselves.

Comes in: batches, topics and streams by name. Goes out: receipts, records, errors in an operator's
words. Must not know what a record means (`contract/`) beyond epoch and markers, nor why it is sent.
"""

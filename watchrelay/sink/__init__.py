"""Room 5, Kafka's words: topics, partitions, acknowledgements."""

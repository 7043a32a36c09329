"""What a config means on one cluster. In: settings, discovery's answers, descriptions on the
control topic. Out: streams with ids, topics and keys, and what they need of Kafka, as values. It
must not know how a stream runs, nor what the commands do."""

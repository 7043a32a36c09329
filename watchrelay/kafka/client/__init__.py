"""The one door to aiokafka: connections, metadata, batches, and each patch with the defect it is
for."""

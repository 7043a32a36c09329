"""The record contract (`docs/record-contract.md`): changes and markers in, Kafka records out, and
back. It covers records, formats, control records, headers, keys and partitions, and does not know
who writes or reads them."""

"""The record contract (`docs/record-contract.md`): records, formats, control records, headers, keys
and partitions."""

"""The process that runs until it is stopped. In: settings and where they came from. Out: an exit
code, and records on topics by way of one `StreamRunner` per stream. It must not know how a frame
is parsed, how a record is encoded, nor what the commands of `cli` and `admin` do."""

"""The command line. In: arguments, signals. Out: data on stdout, messages on stderr, an exit code.

`verbs/` has one module per verb: its argparse definition, and the typed call of the command, which
is imported only when it runs. Nothing here knows aiokafka, aiohttp or the wire format.
"""

"""The command line. In: arguments, signals. Out: data on stdout, messages on stderr, an exit code.

One module per verb: its options, and a function whose parameters are these options.
`watchrelay --help` imports all of them, so each imports what it needs when it runs.
"""

"""One module per verb: its arguments, and the call of its command.

`watchrelay --help` imports all of them, so none imports more than argparse when it is imported.
"""

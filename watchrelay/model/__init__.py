"""The vocabulary that rooms share: immutable values, no behaviour that needs a clock, a socket or a
setting."""

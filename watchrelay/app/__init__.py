"""The composition root: the only place where rooms meet."""

"""Room 3: the latest known state of each stream, and what changed in it."""

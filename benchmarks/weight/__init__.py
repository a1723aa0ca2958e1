"""Counts the program: its lines by package, and the code that a round and a recovery enter."""

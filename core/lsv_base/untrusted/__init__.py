"""Untrusted input: opens files and matches regular expressions with limits on size and time."""

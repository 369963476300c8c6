"""Calls of tools: the forms in which single calls are written, and the marks around them."""

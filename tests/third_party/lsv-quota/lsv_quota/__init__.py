"""Tokens per second that an engine may be asked for."""

"""Keeping an engine process alive, whoever talks to it."""

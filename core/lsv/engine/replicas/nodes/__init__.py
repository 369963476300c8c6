"""Replicas on several machines: their engines dial in where the server is, and are used there as those beside it."""

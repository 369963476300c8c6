"""Spans of requests, sent to whoever gathers the traces of a distributed system."""

"""Benchmarks behind ``lsv bench``: one engine offline, or any OpenAI-compatible server under load."""

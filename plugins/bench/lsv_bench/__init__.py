"""Benchmarks behind ``lsv bench``: an engine offline, or any OpenAI-compatible server under load."""

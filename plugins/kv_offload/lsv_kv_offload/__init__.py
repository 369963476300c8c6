"""Keeps the KV cache of prompts' beginnings in files."""

"""Ollama's API: conversations, texts, vectors and what is known of models, with streams of JSON lines."""

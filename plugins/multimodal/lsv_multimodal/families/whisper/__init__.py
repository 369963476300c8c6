"""Whisper: sound as it hears it, what its prompts say, and what its answers keep to."""

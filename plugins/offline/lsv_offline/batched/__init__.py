"""Logits processors in the forms that vLLM's users write them in, and what carries these out."""

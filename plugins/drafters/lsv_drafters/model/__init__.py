"""A smaller language model that drafts for a larger one, with a KV cache of its own."""

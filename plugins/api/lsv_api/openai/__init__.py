"""Chat, completions, embeddings and tokenizing."""

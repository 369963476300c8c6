"""From hidden states to vectors, labels and scores."""

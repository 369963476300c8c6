"""Models that draft from the states of the model that answers, with a KV cache of their own."""

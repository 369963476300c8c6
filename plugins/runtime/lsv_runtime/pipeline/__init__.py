"""A model's layers spread over groups of ranks that a step passes through one after another."""

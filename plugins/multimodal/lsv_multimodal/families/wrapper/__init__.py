"""Images of the wrappers of transformers, by the processors that their checkpoints name."""

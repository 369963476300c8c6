"""How workers choose tokens: constraints and masks of logits, the draw, log probabilities."""

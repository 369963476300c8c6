"""Which drafts a step verifies, and what is learnt from them."""

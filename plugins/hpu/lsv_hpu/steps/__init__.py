"""What the operator learns of single steps: what the Gaudi software counts in them, and a trace of them."""

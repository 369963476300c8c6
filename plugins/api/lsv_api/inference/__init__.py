"""What the model is shown, and token ids in and out."""

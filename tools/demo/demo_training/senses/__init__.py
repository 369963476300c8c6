"""Made-up images, sounds and clips with questions about them, and the training of the tower on them."""

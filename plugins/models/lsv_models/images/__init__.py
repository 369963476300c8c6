"""Language models that see images, each with a tower, or none, of its family's own."""

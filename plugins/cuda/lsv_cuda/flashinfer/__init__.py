"""FlashInfer's attention."""

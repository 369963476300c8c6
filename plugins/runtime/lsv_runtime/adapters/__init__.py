"""LoRA adapters on a model: slots in its layers, and the store that fills them."""

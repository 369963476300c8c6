"""Low-rank adapters (LoRA): reading PEFT's checkpoints, and the slots in which a model's layers hold them."""

"""lsv-demo: a tiny trained language model that ships inside the package and really answers."""

from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"
"""Folder of the shipped checkpoint, in the plain Hugging Face format."""
PIRATE = Path(__file__).parent / "pirate"
"""Folder of the shipped adapter, in PEFT's format: the same answers, as a pirate gives them."""
SPECULATOR = Path(__file__).parent / "speculator"
"""Folder of its MLP speculator, which drafts its answers."""

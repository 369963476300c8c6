"""lsv-demo: a tiny trained language model that ships inside the package and really answers."""

from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"
"""Folder of the shipped checkpoint, in the plain Hugging Face format."""

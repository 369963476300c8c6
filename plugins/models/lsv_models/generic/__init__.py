"""Any decoder-only architecture of transformers, run with its own code over lsv's paged attention and linear layers."""

from lsv_models.generic.model import Generic

__all__ = ["Generic"]

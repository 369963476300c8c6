"""What towers over one square have alike: the numbers of their layers, and how the square is cut into patches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareConfig:
    """The numbers of a tower with a token for its square before those of the patches."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    channels: int
    image_size: int
    patch_size: int
    norm_eps: float
    activation: str

    @property
    def side(self) -> int:
        """Patches per row."""
        return self.image_size // self.patch_size

    @property
    def tokens(self) -> int:
        """Tokens of a square: its patches behind one for its class."""
        return self.side**2 + 1

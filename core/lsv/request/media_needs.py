"""What a checkpoint and an installation need for another library's code to read the media of a model."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class MediaNeeds(msgspec.Struct, frozen=True):
    """Where they are not met, the language model is served alone."""

    files: tuple[str, ...] = ()
    """A checkpoint has one of them."""
    packages: tuple[str, ...] = ()
    """What is installed, by its name in imports."""
    bars: Mapping[str, str] = {}
    """Keys of the language model's configuration that are not set, each with what it would mean."""

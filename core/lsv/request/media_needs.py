"""What a checkpoint and an installation need for another library's code to read the media of a model."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec


class MediaNeeds(msgspec.Struct, frozen=True):
    """Where they are not met, the language model is served alone."""

    files: tuple[str, ...] = ()
    """A checkpoint has one of them."""
    packages: tuple[str, ...] = ()
    """What is installed, by its name in imports."""
    bars: Mapping[str, str] = {}
    """Keys of the language model's configuration that are not set, each with what it would mean."""

    def find_obstacle(self, folder: Path, language: Mapping[str, Any]) -> str:
        """What is in the way of media for a checkpoint whose language model has the configuration ``language``; empty
        where nothing is.
        """
        if self.files and not any((folder / name).is_file() for name in self.files):
            return f"the checkpoint has neither {' nor '.join(self.files)}, which say how media are prepared"
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            return f"media need the package {', '.join(missing)}, which is not installed"
        return next((f"{why} ({key} in config.json)" for key, why in self.bars.items() if language.get(key)), "")

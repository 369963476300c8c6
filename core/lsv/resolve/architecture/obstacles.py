"""What is in the way of media that another library's code would read."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsv.request.media_needs import MediaNeeds


def find_obstacle(needs: MediaNeeds, folder: Path, language: Mapping[str, Any]) -> str:
    """What a checkpoint, or this installation, lacks of the ``needs`` of its media; empty where that is nothing.

    ``language`` is the configuration of the checkpoint's language model.
    """
    if needs.files and not any((folder / name).is_file() for name in needs.files):
        return f"the checkpoint has neither {' nor '.join(needs.files)}, which say how media are prepared"
    missing = [name for name in needs.packages if importlib.util.find_spec(name) is None]
    if missing:
        return f"media need the package {', '.join(missing)}, which is not installed"
    return next((f"{why} ({key} in config.json)" for key, why in needs.bars.items() if language.get(key)), "")

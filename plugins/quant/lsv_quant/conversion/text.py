"""The text that weights are fitted to. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from lsv_base.errors import CheckpointError, ConfigError
from lsv_base.untrusted.files import read_text


def read_calibration(file: Path) -> str:
    """The text for calibration. Raises ``ConfigError`` for a file that can't be read."""
    try:
        return read_text(file)
    except CheckpointError as cause:
        why = cause.message
    except OSError as cause:
        why = f"{file} can't be read: {cause.strerror}"
    except UnicodeDecodeError:
        why = f"{file} can't be read: it is not text in UTF-8"
    raise ConfigError(why, param="quantization_calibration")

"""Intel's Gaudi software as Python modules, and what it means where one of them can't be loaded."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from lsv_base.errors import ConfigError

_RECIPE = (
    "The Gaudi software needs the torch of its own image, and lsv needs version 1.23 or later: install lsv into "
    "that image with its torch held (pip list --format=freeze | grep '^torch' > constraints.txt; "
    "pip install -c constraints.txt . in a clone of lsv), or with --no-deps"
)


def load(name: str) -> Any:
    """The object that ``"module:object"`` names, or the module itself without an object.

    Raises ``ConfigError`` with the cause. Besides what a missing module or library raises, the software asserts that
    torch is of the version it was built for, and takes the part of the version behind a plus as given.
    Source: gaudi-pytorch-bridge v1.19.0 (5a56187), python_packages/habana_frameworks/torch/__init__.py.
    """
    module, _, wanted = name.partition(":")
    try:
        found = import_module(module)
        return getattr(found, wanted) if wanted else found
    except (ImportError, OSError, AssertionError, AttributeError) as cause:
        origin = "" if "+" in torch.__version__ else ", which is from another index than the image's"
        what = f"{name} can't be loaded beside torch {torch.__version__}{origin}"
        raise ConfigError(f"{what}: {type(cause).__name__}: {cause}. {_RECIPE}", param="platform") from cause

"""The environment of a process that strangers may take over."""

from __future__ import annotations

import os
from collections.abc import Mapping

_HARMLESS = (
    "PATH", "HOME", "LANG", "TZ", "TMPDIR", "PWD", "USER", "LOGNAME", "SYSTEMROOT",
    "LC_", "LD_", "DYLD_", "PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX", "XDG_", "NIX_", "SSL_CERT_",
    "OMP_", "MKL_", "OPENBLAS_", "GOTO_", "HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
)  # fmt: skip
"""Beginnings of the variables that a process needs to find its libraries, folders and language; no secrets."""


def harmless_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The variables that libraries need, and ``more``: for a process that strangers may take over."""
    return {**{name: value for name, value in os.environ.items() if name.startswith(_HARMLESS)}, **more}

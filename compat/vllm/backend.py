"""Builds the wheel with hatchling, unless the environment that pip installs into has vLLM itself."""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from importlib.metadata import distributions
from typing import Any

from hatchling import build as hatchling

OURS = "lsv"
"""The local part of this distribution's version."""

get_requires_for_build_sdist = hatchling.get_requires_for_build_sdist
build_sdist = hatchling.build_sdist

Settings = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """The first hook that pip calls."""
    refuse_beside_vllm()
    return list(hatchling.get_requires_for_build_wheel(config_settings))


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    refuse_beside_vllm()
    return str(hatchling.build_wheel(wheel_directory, config_settings, metadata_directory))


get_requires_for_build_editable = get_requires_for_build_wheel


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    refuse_beside_vllm()
    return str(hatchling.build_editable(wheel_directory, config_settings, metadata_directory))


def refuse_beside_vllm() -> None:
    """Raises ``SystemExit`` where vLLM is installed: pip would uninstall it to make room for this distribution.

    pip builds with the interpreter that it installs for, so its own site-packages are the target, also when the build
    is isolated.
    """
    places = list(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))
    for found in distributions(name="vllm", path=places):
        if found.version.partition("+")[2] != OURS:
            raise SystemExit(
                f"vllm {found.version} is installed in {places[0]}, and pip would remove it: "
                "run pip uninstall vllm first, or install lsv's stand-in into another environment"
            )

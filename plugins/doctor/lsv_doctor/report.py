"""``lsv doctor --report``: one file for a bug report, with what may not leave the machine taken out. Opens no model."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import msgspec

from lsv.offers import PlatformOffer
from lsv.plugins import Plugins
from lsv.resolve.hardware import explain_absence
from lsv.settings import Settings, is_secret, variables
from lsv_base.errors import ConfigError
from lsv_base.version import __version__
from lsv_doctor.findings import Line
from lsv_doctor.secrets import Cleaner, hide

_TOOL_SECONDS = 20.0
_MOST_OUTPUT = 20_000


def collect(lines: Sequence[Line], plugins: Plugins, settings: Settings) -> dict[str, Any]:
    """Everything the report says, cleaned."""
    environment = variables(settings.declared)
    found = {
        "lsv": __version__,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": {
            "python": platform.python_version(),
            "kernel": f"{platform.system()} {platform.release()} {platform.version()}",
            "machine": platform.machine(),
            "distribution": _distribution(),
        },
        "checks": [line._asdict() for line in lines],
        "platforms": [_platform(offer) for offer in plugins.catalog.offers(PlatformOffer)],
        "settings": in_force(settings),
        "environment": {name: hide(name, value) for name, value in environment.items()},
        "packages": dict(sorted(_packages())),
    }
    cleaned: dict[str, Any] = Cleaner(_known_secrets(settings, environment)).tree(found)
    return cleaned


def write(file: Path, found: Mapping[str, Any]) -> None:
    """Raises ``ConfigError`` when the file can't be written."""
    text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    try:
        file.write_text(f"{text}\n", encoding="utf-8")
    except OSError as cause:
        raise ConfigError(f"--report {file} can't be written: {cause.strerror or cause}", param="report") from cause


def in_force(settings: Settings) -> dict[str, dict[str, object]]:
    """Every setting that is not at its default, and where it came from; secrets are not shown."""
    return {
        name: {"value": hide(name, settings[name]), "source": settings.source(name)}
        for name in settings
        if settings.source(name) != "default"
    }


def _known_secrets(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    """The values themselves, wherever else they may turn up."""
    pairs: Iterable[tuple[str, Any]] = (*((name, settings[name]) for name in settings), *environment.items())
    for name, value in pairs:
        if is_secret(name) and not isinstance(value, bool):
            yield from map(str, value if isinstance(value, list | tuple) else [value] if value else [])


def _platform(offer: PlatformOffer) -> dict[str, Any]:
    found: dict[str, Any] = {"name": offer.name, "tools": dict(_tools(offer))}
    try:
        devices = offer.probe()
        found["devices"] = [msgspec.to_builtins(device) for device in devices]
        found["explanation"] = "" if devices else explain_absence(offer)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found


def _tools(offer: PlatformOffer) -> Iterator[tuple[str, str]]:
    """What the vendor's tools print that are installed, each cut to a bounded length."""
    for command in offer.tools:
        if shutil.which(command[0]) is None:
            continue
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_TOOL_SECONDS, check=False
            )
            said = done.stdout or done.stderr
        except (OSError, subprocess.TimeoutExpired) as error:
            said = f"{type(error).__name__}: {error}"
        yield " ".join(command), said[:_MOST_OUTPUT]


def _packages() -> Iterator[tuple[str, str]]:
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            yield name, distribution.version


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""

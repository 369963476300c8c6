"""``lsv doctor --evaluate``: what the devices of a platform attain, beside what sound ones do."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lsv.config import OptionValue
from lsv.platform import Platform
from lsv_base.errors import ConfigError, LsvError
from lsv_runtime.devices.device import Device
from lsv_runtime.devices.opening import open_index

if TYPE_CHECKING:
    from lsv_doctor.measure import Measurement

_UNITS = {"gb_s": "GB/s", "tflop_s": "TFLOP/s", "us": "µs"}
_LESS_IS_BETTER = ("us",)
_SOUND, _LOW = 0.9, 0.7
_MOST_EMULATED = 2
COLUMNS = ("metric", "value", "unit", "reference", "ratio", "device", "note")

Report = Callable[[str], None]
"""Called with the name of each measurement before it starts."""


class Row(msgspec.Struct, frozen=True):
    """One measurement; ``value`` None failed, and ``note`` says why. ``ratio`` over 1 is better than the reference."""

    metric: str
    device: str
    value: float | None
    reference: float | None = None
    note: str = ""

    @property
    def unit(self) -> str:
        return _UNITS.get(_unit(self.metric), "")

    @property
    def ratio(self) -> float | None:
        if not self.value or not self.reference:
            return None
        better_small = _unit(self.metric) in _LESS_IS_BETTER
        return self.reference / self.value if better_small else self.value / self.reference

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "failed"
        if self.ratio is None:
            return ""
        return "sound" if self.ratio >= _SOUND else "low" if self.ratio >= _LOW else "far too low"


def evaluate(
    platform: Platform, options: Mapping[str, OptionValue], plugins: Sequence[str], report: Report, *, emulate: bool
) -> Iterator[Row]:
    """Measure every device of the platform, then the links between them. One that fails is a row that says why."""
    infos = platform.emulated_devices(options)[:_MOST_EMULATED] if emulate else platform.devices()
    references = [{} if emulate else platform.references(info) for info in infos]
    with ExitStack() as stack:
        devices = []
        for info in infos:
            devices.append(open_index(platform, info.index, options))
            stack.callback(devices[-1].close)
        for info, device, known in zip(infos, devices, references, strict=True):
            for measurement in _of_device(device, platform.capabilities(info).dtypes):
                yield _attempt(measurement, device, known, report)
        from lsv_doctor import measure

        for device, measurement in measure.of_peers(devices):
            known = {measurement[0]: references[0]["peer_gb_s"]} if "peer_gb_s" in references[0] else {}
            yield _attempt(measurement, device, known, report)
    if len(infos) > 1:
        yield from _collectives(platform.name, options, plugins, len(infos), references[0], report, emulate=emulate)


def write_csv(file: Path, rows: Sequence[Row]) -> None:
    """Raises ``ConfigError`` when the file can't be written."""
    try:
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(COLUMNS)
            for row in rows:
                values = (row.metric, row.value, row.unit, row.reference, row.ratio, row.device, row.note)
                writer.writerow([f"{value:.4g}" if isinstance(value, float) else value for value in values])
    except OSError as cause:
        raise ConfigError(f"--csv {file} can't be written: {cause.strerror or cause}", param="csv") from cause


def _of_device(device: Device, dtypes: Sequence[str]) -> Iterator[Measurement]:
    from lsv_doctor import measure

    yield from measure.of_memory(device)
    yield from measure.of_arithmetic(device, dtypes)
    yield from measure.of_transfers(device)


def _attempt(measurement: Measurement, device: Device, references: Mapping[str, float], report: Report) -> Row:
    name, run = measurement
    label = f"{device.info.index}: {device.info.name}"
    report(f"{name} of {label}")
    reference = references.get(name)
    try:
        value = run()
    except Exception as error:
        return Row(name, label, None, reference, _in_a_line(error))
    finally:
        device.release_cache()
    return Row(name, label, value, reference)


def _collectives(
    platform: str,
    options: Mapping[str, OptionValue],
    plugins: Sequence[str],
    size: int,
    references: Mapping[str, float],
    report: Report,
    *,
    emulate: bool,
) -> Iterator[Row]:
    from lsv_doctor.ranks import measure_collectives

    label = f"{size} devices"
    report(f"collectives of {label}")
    try:
        found = measure_collectives(platform, emulate=emulate, options=options, plugins=tuple(plugins), size=size)
    except Exception as error:
        yield Row("collectives", label, None, note=_in_a_line(error))
        return
    for name, value in found.items():
        yield Row(name, label, value, references.get(name))


def _in_a_line(error: Exception) -> str:
    text = str(error) if isinstance(error, LsvError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0]


def _unit(metric: str) -> str:
    return next((unit for unit in _UNITS if metric.endswith(f"_{unit}")), "")

"""``lsv quantize MODEL FOLDER --quantization FORMAT``: a plain checkpoint as one in compressed-tensors."""

from __future__ import annotations

from pathlib import Path

from lsv.cli.context import CommandContext
from lsv.resolve import resolve
from lsv.settings import Settings
from lsv_base.errors import ConfigError
from lsv_quant.conversion.formats import WRITABLE
from lsv_quant.conversion.text import read_calibration


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="engine", positional=1, usage="[MODEL] FOLDER")
    target = _read_target(settings)
    config = resolve(settings.replaced("quantization_calibration", None, "lsv quantize"), context.plugins)
    file = settings["quantization_calibration"]
    text = None if file is None else read_calibration(Path(file))
    from lsv_quant.conversion.convert import convert

    def say(line: str) -> None:
        context.console.print(line, markup=False)

    written = convert(config, context.plugins.catalog, target, text, say)
    how = f", {written.calibrated} of them for {written.tokens:,} tokens of {file}" if written.calibrated else ""
    say(f"{target}: {written.layers} layers in {config.quantization}{how}; {written.bytes / (1 << 20):,.1f} MiB")
    say(f"Serve it: lsv serve {target}")
    return 0


def _read_target(settings: Settings) -> Path:
    if not settings.positional:
        raise ConfigError("name the folder to be written: lsv quantize MODEL FOLDER --quantization FORMAT")
    if settings["quantization"] is None:
        raise ConfigError(
            f"name the weight format with --quantization; these can be written: {', '.join(WRITABLE)}",
            param="quantization",
        )
    return Path(settings.positional[0])

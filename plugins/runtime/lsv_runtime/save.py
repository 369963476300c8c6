"""``lsv save-sharded-state``: a checkpoint cut for tensor parallelism, with files for each rank, as vLLM writes it."""

from __future__ import annotations

from pathlib import Path

from lsv.cli.context import CommandContext
from lsv.settings import Setting
from lsv_base.errors import ConfigError

SAVE_SETTINGS = (
    Setting(name="output", short=("-o",), help="the folder that is written", scope="all"),
    Setting(
        name="file_pattern", scope="all",
        help='names of the files of weights (default: "model-rank-{rank}-part-{part}.safetensors")',
    ),
    Setting(name="max_file_size", type="int", low=1, default=5 << 30, help="most bytes of such a file", scope="all"),
)  # fmt: skip


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="engine", extra=SAVE_SETTINGS)
    if settings["output"] is None:
        raise ConfigError("name the folder to be written: -o FOLDER", param="output")
    if settings["enable_expert_parallel"]:
        raise ConfigError(
            "enable_expert_parallel: the files hold a part of every expert for each rank; leave it out",
            param="enable_expert_parallel",
        )
    from lsv.resolve import resolve
    from lsv_runtime.weights.sharded import PATTERN
    from lsv_runtime.worker.load.saved import save_sharded_state

    files = save_sharded_state(
        resolve(settings, context.plugins),
        context.plugins.catalog,
        Path(settings["output"]),
        pattern=settings["file_pattern"] or PATTERN,
        max_size=settings["max_file_size"],
    )
    for file in files:
        context.console.print(f"{file}: {file.stat().st_size:,} bytes", markup=False)
    return 0

"""``lsv plan MODEL``: what would run, why, and what would fit, without loading a weight."""

from __future__ import annotations

import msgspec

from lsv.cli.context import JSON, CommandContext
from lsv.platform import Advice
from lsv.resolve import resolve
from lsv.resolve.hardware import load_platform
from lsv.settings import Setting, Settings, dashed
from lsv_base.errors import ConfigError
from lsv_doctor.traffic import read_traffic

_GIB, _MIB = 1 << 30, 1 << 20


TRAFFIC = Setting(
    name="traffic",
    help='JSONL file with a sample of requests, {"prompt": tokens, "output": tokens} a line, for platforms with advice',
    scope="all",
)


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="engine", extra=(JSON, TRAFFIC))
    config = resolve(settings, context.plugins)
    traffic = read_traffic(settings["traffic"]) if settings["traffic"] else ()
    platform = load_platform(config.platform, context.plugins.catalog, emulate=config.emulate)
    advice = platform.advise(config, traffic)
    if traffic and advice is None:
        raise ConfigError(f"platform {config.platform} has no use for a sample of traffic", param="traffic")
    from lsv_runtime.worker.load.survey import survey

    found = survey(config, context.plugins.catalog)
    fit = found.fit
    if settings["json"]:
        data = {"config": config, "memory": found.memory, "fit": fit, "advice": advice}
        context.console.print_json(data=msgspec.to_builtins(data))
        return 0
    from rich.table import Table

    why = {reason.name: reason.why for reason in (*config.reasons, *fit.reasons)}
    fitted = {reason.name: reason.value for reason in fit.reasons}
    table = Table("what", "value", "why", title=f"{config.served_names[0]} on {config.platform}")
    for name in ("architecture", "platform", "dtype", "quantization", "attention", "block_size", "max_model_len"):
        table.add_row(
            name, fitted.get(name) or str(getattr(config, name) or "none"), why.get(name) or _asked(settings, name)
        )
    table.add_row("weights", f"{fit.weight_bytes / _GIB:.2f} GiB", why.get("cpu_offload_gb", ""))
    for reason in fit.reasons:
        if reason.name == "encoder_cache_bytes":
            table.add_row("media", f"{int(reason.value) / _GIB:.2f} GiB", reason.why)
    if fit.kv_tokens:
        table.add_row("KV cache", f"{fit.kv_bytes / _GIB:.2f} GiB", why.get("kv_bytes", ""))
        table.add_row("KV cache size", f"{fit.kv_tokens:,} tokens", f"{fit.num_blocks:,} blocks of {fit.block_size}")
    if fit.state_bytes:
        table.add_row(
            "state", f"{fit.state_bytes / _MIB:.2f} MiB", "of each request, and of each checkpoint in the cache"
        )
    if fit.kv_tokens:
        concurrency = fit.kv_tokens / config.max_model_len
        table.add_row("concurrency", f"{concurrency:.2f}x", f"requests of {config.max_model_len:,} tokens at once")
    context.console.print(table)
    if advice is not None:
        _show(advice, context)
    return 0


def _show(advice: Advice, context: CommandContext) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("what", "value", "why", title=advice.title)
    for row in advice.rows:
        table.add_row(*row)
    context.console.print(table)
    if advice.settings:
        flags = " ".join(f"--{dashed(name)} {value}" for name, value in advice.settings.items())
        context.console.print(Text(f"to use it: {flags}"), soft_wrap=True)


def _asked(settings: Settings, name: str) -> str:
    """Where the value of an option came from, if somebody gave it."""
    source = settings.source(name) if name in settings else "default"
    return "" if source == "default" else source

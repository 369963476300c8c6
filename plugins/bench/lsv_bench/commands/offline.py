"""``lsv bench offline [MODEL] --data FILE``: prompts through engines that are actors of Ray Data."""

from __future__ import annotations

from importlib.util import find_spec

from lsv.cli.context import CommandContext
from lsv.config import EngineConfig
from lsv.offers import PlatformOffer
from lsv.resolve import resolve
from lsv_base.errors import ConfigError
from lsv_bench.commands.settings import BATCHES
from lsv_bench.commands.workload import Report, make_samples
from lsv_bench.result import Run


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="engine", extra=BATCHES)
    report = Report("offline", "offline, by Ray Data", arguments, settings, BATCHES)
    check_packages()
    config = resolve(settings, context.plugins)
    check(config)
    device = "" if config.emulate else context.plugins.catalog.find(PlatformOffer, config.platform).resource
    from lsv_bench.commands.answerer import Answerer
    from lsv_bench.ray_data import Room, Spread, measure

    room = Room.of(config, settings.get("ray.resource") or device, settings.get("ray.cpus") or 0.0)
    spread = Spread(settings["instances"], settings["batch_size"], settings.get("ray.address"))
    for number in range(settings["repeats"]):
        samples = make_samples(settings, settings["num_prompts"], number=number)
        report.add(Run(figures=measure(samples, Answerer, arguments, room, spread)))
    return report.show(context)


def check_packages() -> None:
    """Raises ``ConfigError`` where Ray Data can't be imported. Imports nothing."""
    if find_spec("ray") is None or find_spec("pyarrow") is None:
        raise ConfigError(
            "lsv bench offline needs packages that are not installed: "
            "pip install -e '.[ray]' 'ray[data]' in a clone of lsv"
        )


def check(config: EngineConfig) -> None:
    """Raises ``ConfigError`` for engines that are not whole in an actor's machine."""
    if config.executor == "ray" or config.nodes is not None:
        raise ConfigError(
            "each of the --instances is on one machine: leave --distributed-executor-backend and --nnodes out",
            param="executor",
        )
    if config.topology.data > 1:
        raise ConfigError("--instances says how many engines there are: leave -dp out", param="data_parallel_size")

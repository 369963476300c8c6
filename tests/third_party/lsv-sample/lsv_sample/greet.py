"""``lsv greet NAME``."""

from __future__ import annotations

from lsv.cli.context import CommandContext
from lsv.settings import Setting

_TIMES = Setting(name="times", type="int", default=1, low=1, help="how often", scope="all")


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, extra=(_TIMES,))
    for _ in range(settings["times"]):
        print(f"{settings['sample.greeting']}, {settings['model']} ({settings.source('sample.greeting')})")
    return 0

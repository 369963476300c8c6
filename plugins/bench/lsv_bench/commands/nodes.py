"""Benchmarks of an engine on several machines: the same command on each, of which node 0 measures."""

from __future__ import annotations

from lsv.cli.context import CommandContext
from lsv.settings import Settings


def serve_as_node(settings: Settings, context: CommandContext) -> bool:
    """Run the ranks of a machine other than node 0 until that one has measured; false on node 0 and on a machine alone.

    Raises ``ConfigError``, ``StartError`` if node 0 can't be joined, and ``EngineDied`` if it is lost.
    """
    for name in ("cluster_key", "host_ip"):
        settings.hand_on(name)
    if settings["nnodes"] == 1:
        return False
    from lsv.resolve import resolve

    config = resolve(settings, context.plugins)
    if config.nodes is None or config.nodes.number == 0:
        return False
    from lsv_runtime.worker.nodes.member import serve_node

    serve_node(config, context.plugins.catalog, lambda now: None)
    return True

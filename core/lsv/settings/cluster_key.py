"""The secret that machines and servers know each other by. It is in no configuration, which others are shown."""

from __future__ import annotations

from lsv.settings import Declared, export, gather
from lsv.settings.hardware import CLUSTER_KEY


def read_cluster_key() -> bytes:
    """That of this process's machine, which ``Settings.hand_on`` has given it; empty where there is none."""
    return str(gather(Declared((CLUSTER_KEY,)), {})["cluster_key"] or "").encode()


def export_cluster_key(key: bytes) -> None:
    """Make it that of the processes that this one starts, too."""
    export({CLUSTER_KEY.variables[0]: key.decode()}, replace=True)

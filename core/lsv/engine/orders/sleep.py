"""Orders to sleep and to wake up."""

from __future__ import annotations

from lsv.engine.orders.order import Order

PARTS = ("weights", "kv_cache")
"""What sleeps, by the names that vLLM gives them; also the order in which they wake up."""
LEVELS = (1, 2)
"""At 1 the host keeps the weights, and what it has of the KV cache; at 2 they are read from the checkpoint again."""

MODES = ("abort", "wait")
"""What becomes of requests that are under way: they end with an error, or are waited for."""


class Sleep(Order, frozen=True):
    """Give back the memory of the KV cache and of the weights. ``BadRequest`` refuses it if sleeping is not enabled."""

    announces = "falling asleep"
    when_idle = True
    while_asleep = True

    level: int = 1
    """One of ``LEVELS``."""

    mode: str = "abort"
    """One of ``MODES``."""


class WakeUp(Order, frozen=True):
    """Take memory again. ``Unavailable`` refuses it if too little is free."""

    announces = "waking up"
    while_asleep = True
    audience = "alive"

    tags: tuple[str, ...] = ()
    """The parts that wake up, of ``PARTS``; all if empty."""

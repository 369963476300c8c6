"""What an ``LLM`` can be told beside prompts: to sleep and wake up, and to write down what its steps do."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from lsv.engine.executor import Executor
from lsv.engine.orders.sleep import Sleep, WakeUp
from lsv.engine.parts.profiles import StartProfile, StopProfile
from lsv_offline.inline_client import InlineClient
from lsv_offline.timeline import Timeline


class ControlMethods:
    """The methods of ``LLM`` for its engine."""

    @property
    def _control(self) -> InlineClient:
        """The client of the engine, which is open."""
        raise NotImplementedError

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give memory back: the KV cache, and the weights, which move to the host's memory at level 1 and are forgotten
        at level 2. Cached prefixes are forgotten.

        Raises ``BadRequest`` without ``enable_sleep_mode=True``.
        """
        self._control.order(Sleep(level, mode))

    def wake_up(self, tags: Collection[str] | None = None) -> None:
        """Take memory again, all or for ``"weights"`` or ``"kv_cache"`` alone; at level 2 weights are read from the
        checkpoint again. Prompts are refused until all is there.
        """
        self._control.order(WakeUp(tuple(tags or ())))

    @property
    def is_sleeping(self) -> bool:
        return bool(self._control.asleep)

    def start_profile(self) -> None:
        """Record a profile from now on. Raises ``BadRequest`` without ``profiler_config`` or ``torch_profiler_dir``."""
        self._control.order(StartProfile())

    def stop_profile(self) -> None:
        """Write the profile into its folder."""
        self._control.order(StopProfile())

    @contextmanager
    def timeline(self) -> Iterator[Timeline]:
        """Write down when steps are planned, computed and waited for; ``events`` are those of Chrome's trace format."""
        made: list[Timeline] = []

        def around(executor: Executor) -> Timeline:
            made.append(Timeline(executor))
            return made[0]

        client = self._control
        client.watch(around)
        try:
            yield made[0]
        finally:
            client.watch(lambda timeline: made[0].executor)

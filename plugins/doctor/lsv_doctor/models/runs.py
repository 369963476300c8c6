"""Checks of many classes: in processes of their own, some at a time, each with a time limit."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue

from lsv_base.processes.child import Child
from lsv_base.processes.output import Output
from lsv_doctor.models.orders import Order, Verdict

SECONDS = 120.0
"""Of one class."""
_FIRST_SECONDS = 60.0
"""More for the first class of a process, which imports everything."""
_MODULE = "lsv_doctor.models.checker"
_CLASSES = 40
"""A process is replaced after so many, lest what they leave behind adds up."""

Report = Callable[[Verdict], None]


def check_all(orders: Sequence[Order], report: Report, *, jobs: int, seconds: float = SECONDS) -> None:
    """Report a verdict of every order, in the order they come. ``report`` is called from several threads.

    A class that ends its process or takes longer than ``seconds`` is a ``crash``, and the rest goes on.
    """
    waiting: SimpleQueue[Order] = SimpleQueue()
    for order in orders:
        waiting.put(order)
    with ThreadPoolExecutor(jobs) as pool:  # a process dies with the thread that has started it
        for done in [pool.submit(_work, waiting, report, seconds) for _ in range(min(jobs, len(orders)))]:
            done.result()


def _work(waiting: SimpleQueue[Order], report: Report, seconds: float) -> None:
    """Check what is waiting until nothing is."""
    checker = None
    try:
        while True:
            order = waiting.get_nowait()
            if checker is not None and (checker.taken == _CLASSES or not checker.running):
                checker.end()
                checker = None
            if checker is None:
                checker = _Checker(order)
            else:
                checker.take(order)
            report(checker.answer(seconds))
    except Empty:
        return
    finally:
        if checker is not None:
            checker.end()


class _Checker(Child[Order, Verdict]):
    """A process that checks classes. What it prints is kept, since its last line says why it ended."""

    def __init__(self, order: Order) -> None:
        self._output = Output()
        self._order, self.taken = order, 1
        super().__init__(_MODULE, order, Verdict, stdout=self._output.fileno(), stderr=subprocess.STDOUT)

    def take(self, order: Order) -> None:
        self._order, self.taken = order, self.taken + 1
        with suppress(OSError):  # it has ended, which the answer will tell
            self.send(order)

    def answer(self, seconds: float) -> Verdict:
        """The verdict; that it has ended, or was ended because it took too long, is one as well."""
        began = time.monotonic()
        try:
            return self.receive(seconds + (_FIRST_SECONDS if self.taken == 1 else 0.0))
        except TimeoutError:
            self.kill()
            why = f"it gave no answer in {seconds:g} s"
        except (OSError, EOFError):
            self.wait(1.0)
            why = f"its process {self.how_it_ended()}: {next(iter(self._output.last_lines(1)), 'it printed nothing')}"
        spent = round(time.monotonic() - began, 1)
        return Verdict(architecture=self._order.architecture, state="crash", detail=why, seconds=spent)

    def end(self, seconds: float = 0.0) -> None:
        super().end(seconds)
        self._output.close()

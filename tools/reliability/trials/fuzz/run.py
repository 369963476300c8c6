"""A target under a flood of inputs, in a process of its own: ``python -m trials.fuzz.run TARGET SEED FIRST``.

It says the number of each input before it reads it, and what the reader raised; who started it notices when it falls
silent. Its memory is limited.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import resource
import sys
import tempfile
import traceback
from importlib.util import find_spec
from pathlib import Path

from lsv import plugins
from trials.fuzz.target import Inputs, Target, try_input
from trials.fuzz.targets import find_target

MOST_BYTES = 1 << 30
"""What an input may make a reader take, beyond what the process has without one."""


def main(name: str, seed: int, first: int) -> None:
    target = find_target(name)
    inputs = Inputs(target, seed)
    logging.disable()
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
        read = target.reader(Path(folder))
        _limit_memory(target)
        for number in itertools.count(first):
            data = inputs.make(number)
            _say({"number": number})
            error = try_input(read, data)
            if error is not None:
                _say({"number": number, "error": describe(error), "place": place_of(error)})


def describe(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-4000:]


@functools.cache
def _folders() -> tuple[Path, ...]:
    """Those of lsv's packages; the tree that they are in may be called lsv, too."""
    found = (find_spec(name) for name in plugins.packages())
    return tuple(Path(spec.origin).parent for spec in found if spec is not None and spec.origin)


def place_of(error: BaseException) -> str:
    """Where in lsv it was raised: what is found twice there is one finding."""
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if any(Path(frame.filename).is_relative_to(folder) for folder in _folders())]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside of lsv"
    return f"{type(error).__name__} at {place}"


def _say(line: dict[str, object]) -> None:
    # on the descriptor itself: libraries print to stdout, too
    print(json.dumps(line), file=sys.__stdout__, flush=True)


def _memory_folder() -> str | None:
    """A folder without a disk behind it, where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _limit_memory(target: Target) -> None:
    if not target.memory:
        return
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

"""``python -m trials.fuzz.replay TARGET FILE``: a target reads a file that a fuzzer left."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from trials.fuzz.run import describe
from trials.fuzz.target import try_input
from trials.fuzz.targets import find_target


def main(name: str, file: Path) -> int:
    """1 where it raises what is no ``LsvError``."""
    with tempfile.TemporaryDirectory() as folder:
        error = try_input(find_target(name).reader(Path(folder)), file.read_bytes())
    print("read or refused, as it should be" if error is None else describe(error))
    return error is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))

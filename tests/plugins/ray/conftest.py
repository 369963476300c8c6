"""A cluster for the tests of this folder; they need ``pip install -e '.[ray]'``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsv_testing.tiny import tiny

NSYS = """#!/bin/bash
# In place of Nsight Systems: notes how it was called, writes a report, and becomes what it is to run.
printf '%s\\n' "$@" > "$(dirname "$0")/words.$$"
shift
while [[ $1 == -* ]]; do case $1 in -o) touch "${2//\\'/}.nsys-rep" ;; esac; [[ $1 == --* ]] && shift || shift 2; done
exec "$@"
"""


@pytest.fixture(scope="session")
def nsys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Ray finds ``nsys``; what it was called with is beside it."""
    folder = tmp_path_factory.mktemp("nsys")
    (folder / "nsys").write_text(NSYS)
    (folder / "nsys").chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def cluster(nsys: Path) -> Iterator[Any]:
    """Two machines, as Ray sees it, of two cores each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        # Under Nsight Systems Ray starts the python that it finds first.
        patch.setenv("PATH", os.pathsep.join([str(nsys), str(Path(sys.executable).parent), os.environ["PATH"]]))
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
        made.add_node(num_cpus=2)
    yield made
    made.shutdown()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny("llama", tmp_path_factory.mktemp("ray") / "llama", tokenizer=True))

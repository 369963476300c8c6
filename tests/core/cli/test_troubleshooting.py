"""What the guides tell users to set is there to be set."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lsv import plugins
from lsv.settings import options
from lsv_bench.commands.settings import DATASET

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.row("F-870", "F-874", "F-981", "F-986")
@pytest.mark.parametrize("guide", ["troubleshooting.md", "monitoring.md", "profiling.md"])
def test_flags_and_variables_of_a_guide_exist(guide: str) -> None:
    text = (DOCS / guide).read_text(encoding="utf-8")
    found = plugins.load()
    settings = (*options.CORE, *found.settings())
    flags = {key for setting in settings for key in setting.keys}
    of_bench = {"cold", "profile", "output", "no-ops", *(key for setting in DATASET for key in setting.keys)}
    # of lsv doctor, py-spy, docker, lsv bench and lsv trace
    of_commands = {"report", "evaluate", "collectives", "pid", "runtime", *of_bench}
    assert set(re.findall(r"--([a-z][a-z-]*)", text)) <= flags | of_commands
    variables = {variable for setting in settings for variable in setting.variables}
    named = set(re.findall(r"`((?:VLLM|CUDA|NCCL|GLOO)_[A-Z_]+)[=`]", text))
    assert named <= variables


@pytest.mark.row("F-985")
def test_the_guide_names_what_an_unknown_runtime_lacks() -> None:
    """As Docker words it, so that a search finds it, and the configuration is valid JSON."""
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    assert "`Unknown runtime specified habana`" in text
    assert "`habanalabs-container-runtime`" in text
    (configuration,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert json.loads(configuration)["runtimes"]["habana"]["path"]

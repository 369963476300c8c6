"""The native kernels of each instruction set that this processor has, on real weights as they are served. AMX tiles are
emulated where it lacks them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from lsv_cpu.machine import Machine
from published.checks import Forced
from published.models import Published

ASK = """
import json, sys
from lsv import LLM
from published.checks import score
from published.golden import read_golden

if __name__ == "__main__":
    with LLM(sys.argv[1], max_model_len=2048, cpu_kvcache_space=1) as llm:
        print(json.dumps(score(llm, read_golden("smollm2").answers)))
"""


@pytest.mark.parametrize("isa", sorted({*Machine().instruction_sets(), "amx"}))
def test_an_instruction_set_is_as_near_as_any(published: Published, isa: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"LSV_PLATFORM": "cpu", "LSV_EMULATE": "1", "LSV_CPU_ISA": isa}
    command = [sys.executable, "-c", ASK, str(published.smollm2())]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found = Forced(*json.loads(done.stdout.splitlines()[-1]))
    assert found.is_near, found

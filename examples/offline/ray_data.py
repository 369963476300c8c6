"""A file of prompts through engines on a Ray cluster: ``python ray_data.py prompts.txt answers/ --instances 4 -tp 2``.

Ray Data starts the engines where there is room, hands them batches as they come to an end, and writes the answers as
they come. An engine is an actor, so all of its devices are on one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import ray.data

from lsv import LLM, EngineArgs, FlexibleArgumentParser, SamplingParams


class Engine:
    """Made once in each actor."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._llm = LLM(**options)
        self._params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=64)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        outputs = self._llm.generate(list(batch["text"]), self._params, use_tqdm=False)
        texts = [output.outputs[0].text for output in outputs]
        return {"prompt": batch["text"], "generated": np.array(texts, dtype=object)}


def room(options: dict[str, Any], resource: str | None) -> dict[str, Any]:
    """What Ray reserves for an engine of several devices."""
    ranks = options.get("tensor_parallel_size", 1) * options.get("pipeline_parallel_size", 1)
    if resource is None:
        return {"num_cpus": ranks}
    return {"num_gpus": ranks} if resource == "GPU" else {"resources": {resource: ranks}}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(description=__doc__))
    parser.add_argument("prompts", help="text file or folder, a prompt a line; also s3://… and what else Ray reads")
    parser.add_argument("answers", help="folder for the answers, as JSON lines")
    parser.add_argument("--instances", type=int, default=1, help="engines")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--resource", help="what Ray calls a device: GPU, HPU (default: the host's cores)")
    given = parser.parse_args(arguments)
    options = EngineArgs.from_cli_args(given).given()
    prompts = ray.data.read_text(given.prompts)
    answers = prompts.map_batches(
        Engine, fn_constructor_args=(options,), concurrency=given.instances, batch_size=given.batch_size,
        **room(options, given.resource),
    )  # fmt: skip
    answers.write_json(given.answers)


if __name__ == "__main__":
    main()

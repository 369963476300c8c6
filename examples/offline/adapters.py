"""Requests for the base and for LoRA adapters in one batch: ``python adapters.py --adapter NAME=FOLDER …``.

With ``--quantization`` the base is quantised, and the adapters are added to what it computes.
"""

from __future__ import annotations

from collections.abc import Sequence

from lsv import LLM, EngineArgs, FlexibleArgumentParser, LoRARequest, SamplingParams
from lsv_demo import PIRATE

PROMPT = "Hello"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(description=__doc__))
    parser.add_argument("--adapter", action="append", help="NAME=FOLDER; may come again (default: lsv-demo's)")
    given = parser.parse_args(arguments)
    named = [one.partition("=") for one in given.adapter or [f"pirate={PIRATE}"]]
    adapters = [LoRARequest(name, number, folder) for number, (name, _, folder) in enumerate(named, 1)]
    options = {**EngineArgs.from_cli_args(given).given(), "enable_lora": True, "max_loras": len(adapters)}
    asked = [None, *adapters]
    with LLM(**options) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=16)
        for adapter, output in zip(asked, llm.generate([PROMPT] * len(asked), params, lora_request=asked), strict=True):
            print(f"{adapter.lora_name if adapter else 'base'}: {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()

"""A question about a sound: ``python audio.py speech.wav --question "What is said?"``."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from lsv import LLM, EngineArgs, FlexibleArgumentParser, SamplingParams


def main(arguments: Sequence[str] | None = None) -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(description=__doc__))
    parser.add_argument("sound", type=Path, help="file")
    parser.add_argument("--question", default="How many beeps are there?")
    given = parser.parse_args(arguments)
    sound = {"data": base64.b64encode(given.sound.read_bytes()).decode(), "format": given.sound.suffix[1:]}
    content = [{"type": "input_audio", "input_audio": sound}, {"type": "text", "text": given.question}]
    with LLM(**EngineArgs.from_cli_args(given).given()) as llm:
        (output,) = llm.chat([{"role": "user", "content": content}], SamplingParams(temperature=0.0, max_tokens=48))
        print(output.outputs[0].text)


if __name__ == "__main__":
    main()

"""A question about a sound, or about two: ``python audio.py speech.wav --question "What is said?"``.

``--model-type`` chooses a model of a family by its name, unless ``--model`` names one, and writes the prompt as that
family wants it. Without it the model's own template says where a sound belongs.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from families import HEARING, add_arguments, choose

from lsv import LLM, EngineArgs, FlexibleArgumentParser, SamplingParams


def main(arguments: Sequence[str] | None = None) -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(description=__doc__))
    parser.add_argument("sound", type=Path, nargs="+", help="file, or two")
    parser.add_argument("--question", default="How many beeps are there?")
    add_arguments(parser, HEARING)
    parser.add_argument("--num-audios", type=int, choices=(1, 2), help="sounds in a prompt; one file may stand for two")
    given = parser.parse_args(arguments)
    sounds = (given.sound * 2)[: given.num_audios or len(given.sound)]
    params = SamplingParams(temperature=0.0, max_tokens=48)
    family, options = choose(given, HEARING)
    with LLM(**options) as llm:
        if family is not None:
            data = {"audio": [sound.read_bytes() for sound in sounds]}
            asked = {"prompt": family.prompt(given.question, len(sounds)), "multi_modal_data": data}
            outputs = llm.generate([asked] * given.num_prompts, params)
        else:
            content = [*map(part, sounds), {"type": "text", "text": given.question}]
            outputs = llm.chat([[{"role": "user", "content": content}]] * given.num_prompts, params)
        for output in outputs:
            print(output.outputs[0].text)


def part(sound: Path) -> dict[str, object]:
    """A part of a message."""
    data = base64.b64encode(sound.read_bytes()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": sound.suffix[1:]}}


if __name__ == "__main__":
    main()

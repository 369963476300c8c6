"""A question about a picture: ``python vision.py photo.jpg --question "What is this?"``.

``--model-type`` chooses a model of a family by its name, unless ``--model`` names one, and writes the prompt as that
family wants it. Without it the model's own template says where a picture belongs.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from families import SEEING, add_arguments, choose

from lsv import LLM, EngineArgs, FlexibleArgumentParser, SamplingParams


def main(arguments: Sequence[str] | None = None) -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(description=__doc__))
    parser.add_argument("image", type=Path, help="file")
    parser.add_argument("--question", default="What colour is it?")
    add_arguments(parser, SEEING)
    given = parser.parse_args(arguments)
    picture, params = given.image.read_bytes(), SamplingParams(temperature=0.0, max_tokens=48)
    family, options = choose(given, SEEING)
    with LLM(**options) as llm:
        if family is not None:
            asked = {"prompt": family.prompt(given.question), "multi_modal_data": {"image": picture}}
            outputs = llm.generate([asked] * given.num_prompts, params)
        else:
            url = f"data:image/*;base64,{base64.b64encode(picture).decode()}"
            content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": given.question}]
            outputs = llm.chat([[{"role": "user", "content": content}]] * given.num_prompts, params)
        for output in outputs:
            print(output.outputs[0].text)


if __name__ == "__main__":
    main()

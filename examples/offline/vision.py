"""A question about a picture: ``python vision.py photo.jpg --question "What is this?"``.

Most models have a template that says where a picture belongs. For checkpoints without one, ``--model-type`` writes the
prompt as their family wants it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from lsv import LLM, EngineArgs, FlexibleArgumentParser, SamplingParams

PROMPTS = {
    "llava": "USER: <image>\n{}\nASSISTANT:",
    "llava-next": "[INST] <image>\n{} [/INST]",
    "qwen2-vl": "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{}<|im_end|>\n<|im_start|>assistant\n",
}


def prompt(family: str, question: str) -> str:
    """Raises ``ValueError`` for a family that is not here."""
    if family not in PROMPTS:
        raise ValueError(f"there is no model type {family!r}; there are {', '.join(PROMPTS)}")
    return PROMPTS[family].format(question)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(description=__doc__))
    parser.add_argument("image", type=Path, help="file")
    parser.add_argument("--question", default="What colour is it?")
    parser.add_argument("--model-type", help=f"family of a checkpoint without a template: {', '.join(PROMPTS)}")
    given = parser.parse_args(arguments)
    picture, params = given.image.read_bytes(), SamplingParams(temperature=0.0, max_tokens=48)
    text = prompt(given.model_type, given.question) if given.model_type else ""
    with LLM(**EngineArgs.from_cli_args(given).given()) as llm:
        if text:
            (output,) = llm.generate({"prompt": text, "multi_modal_data": {"image": picture}}, params)
        else:
            url = f"data:image/*;base64,{base64.b64encode(picture).decode()}"
            content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": given.question}]
            (output,) = llm.chat([{"role": "user", "content": content}], params)
        print(output.outputs[0].text)


if __name__ == "__main__":
    main()

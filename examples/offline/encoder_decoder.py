"""Prompts of encoder-decoders such as BART: read by the encoder, by the decoder, or by both."""

from __future__ import annotations

from collections.abc import Sequence

from options import read

from lsv import LLM, SamplingParams

PROMPTS = [
    "The president of the United States is",
    {"encoder_prompt": "The capital of France is Paris.", "decoder_prompt": "The capital"},
    {"encoder_prompt": "An encoder prompt alone", "decoder_prompt": None},
]


def main(arguments: Sequence[str] | None = None) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20)
    with LLM(**read(__doc__, arguments, model="facebook/bart-large-cnn", dtype="float32")) as llm:
        for output in llm.generate(PROMPTS, params):
            print(f"encoder {output.encoder_prompt!r}, decoder {output.prompt!r} → {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()

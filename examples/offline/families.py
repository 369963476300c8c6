"""Families of models that see or hear: one of each by its name on the Hub, and how its prompts are written.

``{media}`` is where pictures or sounds go, ``{question}`` the question. Most of these models have a chat template that
says the same; a prompt of one's own is for checkpoints without.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lsv import EngineArgs, FlexibleArgumentParser

_QWEN = "<|im_start|>user\n{media}{question}<|im_end|>\n<|im_start|>assistant\n"


class Family(NamedTuple):
    """``mark`` stands for one picture or sound, behind the last of which comes ``{question}``."""

    model: str
    mark: str
    form: str

    def prompt(self, question: str, count: int = 1) -> str:
        """The prompt for so many pictures or sounds."""
        return self.form.format(media=self.mark * count, question=question)


SEEING = {
    "blip-2": Family("Salesforce/blip2-opt-2.7b", "", "Question: {question} Answer:"),
    "chameleon": Family("facebook/chameleon-7b", "<image>", "{question}{media}"),
    "dots_ocr": Family(
        "rednote-hilab/dots.ocr", "<|img|><|imgpad|><|endofimg|>", "<|user|>{media}{question}<|endofuser|><|assistant|>"
    ),
    "fuyu": Family("adept/fuyu-8b", "", "{question}\n"),
    "gemma3": Family(
        "google/gemma-3-4b-it",
        "<start_of_image>",
        "<start_of_turn>user\n{media}{question}<end_of_turn>\n<start_of_turn>model\n",
    ),
    "glm4v": Family(
        "zai-org/glm-4v-9b",
        "<|begin_of_image|><|endoftext|><|end_of_image|>",
        "<|user|>\n{media}{question}<|assistant|>",
    ),
    "glm4_1v": Family(
        "zai-org/GLM-4.1V-9B-Thinking",
        "<|begin_of_image|><|image|><|end_of_image|>",
        "[gMASK]<sop><|user|>\n{media}{question}<|assistant|>\n",
    ),
    "internvl_chat": Family("OpenGVLab/InternVL3-2B", "<image>\n", _QWEN),
    "llava": Family("llava-hf/llava-1.5-7b-hf", "<image>\n", "USER: {media}{question}\nASSISTANT:"),
    "llava-next": Family("llava-hf/llava-v1.6-mistral-7b-hf", "<image>\n", "[INST] {media}{question} [/INST]"),
    "minicpmv": Family("openbmb/MiniCPM-V-2_6", "(<image>./</image>)\n", _QWEN),
    "mllama": Family(
        "meta-llama/Llama-3.2-11B-Vision-Instruct",
        "<|image|>",
        "<|start_header_id|>user<|end_header_id|>\n\n{media}{question}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "paligemma": Family("google/paligemma-3b-mix-224", "<image>", "{media}answer en {question}"),
    "phi3_v": Family(
        "microsoft/Phi-3.5-vision-instruct", "<|image|>\n", "<|user|>\n{media}{question}<|end|>\n<|assistant|>\n"
    ),
    "qwen2-vl": Family("Qwen/Qwen2-VL-7B-Instruct", "<|vision_start|><|image_pad|><|vision_end|>", _QWEN),
    "qwen2.5-vl": Family("Qwen/Qwen2.5-VL-7B-Instruct", "<|vision_start|><|image_pad|><|vision_end|>", _QWEN),
    "qwen3-vl": Family("Qwen/Qwen3-VL-8B-Instruct", "<|vision_start|><|image_pad|><|vision_end|>", _QWEN),
}
HEARING = {
    "qwen2.5-omni": Family("Qwen/Qwen2.5-Omni-7B", "<|audio_bos|><|AUDIO|><|audio_eos|>", _QWEN),
    "ultravox": Family(
        "fixie-ai/ultravox-v0_5-llama-3_2-1b",
        "<|audio|>\n",
        "<|start_header_id|>user<|end_header_id|>\n\n{media}{question}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
}


def add_arguments(parser: FlexibleArgumentParser, families: dict[str, Family]) -> None:
    parser.add_argument("-m", "--model-type", help=f"one of {', '.join(families)}")
    parser.add_argument("--num-prompts", type=int, default=1, help="ask so often, in one batch")


def choose(given: Any, families: dict[str, Family]) -> tuple[Family | None, dict[str, Any]]:
    """The family that is asked for, if one is, and what ``LLM`` is given: its model, unless another one is named.

    Raises ``ValueError`` for a family that is not here.
    """
    name, options = given.model_type, EngineArgs.from_cli_args(given).given()
    if not name:
        return None, options
    if name not in families:
        raise ValueError(f"there is no model type {name!r}; there are {', '.join(families)}")
    return families[name], {"model": families[name].model, **options}

"""Media and texts that are encoded: the first stage does it, and the cross layers of all stages have what they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image

from lsv import LLM, SamplingParams
from lsv_base.errors import ConfigError
from lsv_doctor.models.classes import Class, read_classes
from lsv_doctor.models.tiny import make_model, save, tiny_config
from lsv_models.seq2seq.tower import TextTower
from lsv_testing.tiny import tiny, write_tokenizer
from lsv_testing.tiny_hearing import tiny_hearing

pytestmark = pytest.mark.usefixtures("ranks_are_threads")

DRAWN = SamplingParams(temperature=1.0, seed=5, logprobs=1, max_tokens=8, ignore_eos=True, detokenize=False)
FAST = ("T5ForConditionalGeneration",)
READERS = [one for one in read_classes().values() if one.kind == "seq2seq" and one.state == "runs"]
TEXTS: Any = [
    {"encoder_prompt": text, "decoder_prompt": {"prompt_token_ids": [0, *text.encode()[:2]]}}
    for text in ("Rain fell on the hills all night.", "Snow", "It is warm and dry in the valley today.", "Snow")
]


def ask(model: Path, prompts: Any, **more: Any) -> list[Any]:
    options = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 3, "num_gpu_blocks_override": 64, **more}
    with LLM(str(model), **options) as llm:
        answers = llm.generate(prompts, DRAWN, use_tqdm=False)
        return [str(one.error) if one.error else one.outputs[0] for one in answers]


def is_alike(one: Any, other: Any) -> bool:
    """Whether two answers have the same tokens, of the same likelihood."""
    return bool(
        one.token_ids == other.token_ids and one.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-3)
    )


def check(model: Path, prompts: Any, **more: Any) -> None:
    expected = ask(model, prompts, **more)
    assert not is_alike(expected[0], expected[1])
    found = ask(model, prompts, pipeline_parallel_size=2, **more)
    assert all(is_alike(*both) for both in zip(found, expected, strict=True))


@pytest.mark.row("F-280")
@pytest.mark.parametrize(
    "one",
    [pytest.param(one, id=one.family, marks=[pytest.mark.slow] * (one.architecture not in FAST)) for one in READERS],
)
def test_texts_are_read_in_stages(one: Class, tmp_path: Path) -> None:
    save(make_model(getattr(transformers, one.architecture), tiny_config(one.family)), tmp_path)
    write_tokenizer(tmp_path)
    if one.family == "prophetnet":
        with pytest.raises(ConfigError, match="need more than the output of the layer before"):
            ask(tmp_path, TEXTS, pipeline_parallel_size=2)
        return
    check(tmp_path, TEXTS)


def test_what_is_heard_is_heard_in_all_stages(tmp_path: Path) -> None:
    sounds = [torch.randn(16_000 * seconds).numpy() for seconds in (1, 2)]
    prompts = [{"prompt": "<|startoftranscript|>", "multi_modal_data": {"audio": (sound, 16_000)}} for sound in sounds]
    check(tiny_hearing(tmp_path, seconds=2), prompts)


@pytest.mark.parametrize(("family", "mark"), [("llava", "<image>"), ("fuyu", "|SPEAKER|"), ("blip-2", "<image>")])
def test_pictures_are_seen_by_the_first_stage(family: str, mark: str, tmp_path: Path) -> None:
    tiny(family, tmp_path, tokenizer=True)
    prompts = [
        {"prompt": f"see {mark}?", "multi_modal_data": {"image": Image.new("RGB", (64, 64), colour)}}
        for colour in ("red", "blue")
    ]
    check(tmp_path, prompts, max_model_len=128)


def test_what_goes_deeper_needs_a_first_stage_as_deep(tmp_path: Path) -> None:
    tiny("qwen3_vl", tmp_path, tokenizer=True)
    prompts = [
        {"prompt": "see <|image_pad|>?", "multi_modal_data": {"image": Image.new("RGB", (64, 64), colour)}}
        for colour in ("red", "blue")
    ]
    expected = ask(tmp_path, prompts, max_model_len=256)
    assert not is_alike(*expected)
    found = ask(tmp_path, prompts, max_model_len=256, pipeline_parallel_size=2, pipeline_layer_partition="2,1")
    assert all(is_alike(*both) for both in zip(found, expected, strict=True))
    with pytest.raises(ConfigError, match="behind each of the first 2 layers, and the first stage has 1"):
        ask(tmp_path, prompts, max_model_len=256, pipeline_parallel_size=2, pipeline_layer_partition="1,2")


def test_pictures_are_attended_to_in_all_stages(tmp_path: Path) -> None:
    tiny("mllama", tmp_path, tokenizer=True)
    prompts: Any = [
        {"prompt": "see <|image|>?", "multi_modal_data": {"image": Image.new("RGB", (64, 64), colour)}}
        for colour in ("red", "blue")
    ]
    check(tmp_path, [*prompts, {"prompt": "see nothing"}], max_model_len=128)


def test_what_can_not_be_encoded_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(make_model(transformers.BartForConditionalGeneration, tiny_config("bart")), tmp_path)
    write_tokenizer(tmp_path)
    expected = ask(tmp_path, TEXTS)
    whole = TextTower.begin

    def begin(tower: TextTower, inputs: Any) -> Any:
        if len(inputs["ids"]) < 9:
            raise ValueError("it is too short")
        return whole(tower, inputs)

    monkeypatch.setattr(TextTower, "begin", begin)
    found = ask(tmp_path, TEXTS, pipeline_parallel_size=2)
    assert all(is_alike(found[place], expected[place]) for place in (0, 2))
    assert all("it is too short" in found[place] for place in (1, 3))

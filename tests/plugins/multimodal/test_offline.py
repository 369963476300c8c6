"""``LLM`` with media, on a real model whose pictures are worth the bytes of their colours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from lsv import LLM, SamplingParams
from lsv.plugins import Plugins
from lsv_base.errors import BadRequest, ConfigError
from lsv_testing.tiny import tiny

from .conftest import clip, encode, link, solid, sound, write_mini_tokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, family: Plugins) -> Iterator[LLM]:
    folder = tiny("llama", tmp_path_factory.mktemp("mini") / "model")
    write_mini_tokenizer(folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "architectures": ["MiniForCausalLM"]}))
    options: dict[str, Any] = {
        "limit_mm_per_prompt": "image=2,video=1",
        "mm_processor_kwargs": {"shift": 0},
        "allowed_local_media_path": str(folder),
    }
    with LLM(str(folder), plugins=list(family.names), dtype="float32", block_size=16, **options) as made:
        yield made


def ask(llm: LLM, prompt: Any) -> tuple[int, ...]:
    (output,) = llm.generate([prompt], GREEDY, use_tqdm=False)
    return output.outputs[0].token_ids


def worth(llm: LLM, before: str, shown: list[int], after: str) -> tuple[int, ...]:
    """What the same prompt gives in which the media are tokens."""
    return ask(llm, {"prompt_token_ids": [*before.encode(), 258, *shown, 258, *after.encode()]})


COLOUR = (65, 66, 67)


@pytest.mark.row("F-035", "F-698")
@pytest.mark.parametrize("form", ["bytes", "path", "url", "file", "pil", "array", "list", "palette"])
def test_every_form_of_a_picture(llm: LLM, form: str, tmp_path: Path) -> None:
    data = solid(*COLOUR)
    (tmp_path / "cat.png").write_bytes(data)
    inside = Path(llm.config.model) / "cat.png"
    inside.write_bytes(data)
    image = Image.new("RGB", (4, 3), COLOUR)
    item = {
        "bytes": data,
        "path": str(tmp_path / "cat.png"),
        "url": link(data),
        "file": f"file:{inside}",
        "pil": image,
        "array": np.asarray(image),
        "list": [image],
        "palette": image.convert("P", palette=Image.Palette.ADAPTIVE),
    }[form]
    found = ask(llm, {"prompt": "see <image>?", "multi_modal_data": {"image": item}})
    assert found == worth(llm, "see ", list(COLOUR), "?")


@pytest.mark.row("F-959")
def test_two_pictures_in_order_and_options(llm: LLM) -> None:
    one, two = solid(10, 20, 30), solid(40, 50, 60)
    prompt = {"prompt": "<image><image>", "multi_modal_data": {"image": [one, two]}}
    expected = ask(llm, {"prompt_token_ids": [258, 10, 20, 30, 258, 258, 40, 50, 60, 258]})
    assert ask(llm, prompt) == expected
    turned = {"prompt": "<image><image>", "multi_modal_data": {"image": [two, one]}}
    assert ask(llm, turned) == ask(llm, {"prompt_token_ids": [258, 40, 50, 60, 258, 258, 10, 20, 30, 258]})
    shifted = {**prompt, "mm_processor_kwargs": {"shift": 1}}
    assert ask(llm, shifted) == ask(llm, {"prompt_token_ids": [258, 11, 21, 31, 258, 258, 41, 51, 61, 258]})


@pytest.mark.row("F-035", "F-699", "F-700")
def test_sounds_and_clips(llm: LLM) -> None:
    samples = np.full(8_000, 0.5, np.float32)
    for item in ((samples, 8_000), (np.stack([samples, samples]), 8_000), sound(samples[None], 8_000)):
        found = ask(llm, {"prompt": "<audio>", "multi_modal_data": {"audio": item}})
        assert found == worth(llm, "", [50], "")
    frames = np.full((3, 8, 8, 3), 77, np.uint8)
    for shown in (frames, (frames, [0.0, 0.5, 1.0])):
        assert ask(llm, {"prompt": "<video>", "multi_modal_data": {"video": shown}}) == worth(llm, "", [77] * 3, "")
    assert len(ask(llm, {"prompt": "<video>", "multi_modal_data": {"video": clip([9] * 8)}})) == 6


def test_beams_go_on_behind_a_picture(llm: LLM) -> None:
    params = SamplingParams(use_beam_search=True, n=3, max_tokens=20, ignore_eos=True)
    shown = {"prompt": "see <image>?", "multi_modal_data": {"image": solid(*COLOUR)}}
    same = {"prompt_token_ids": [*b"see ", 258, *COLOUR, 258, *b"?"]}
    seen, read = llm.generate([shown, same], params, use_tqdm=False)
    assert [answer.token_ids for answer in seen.outputs] == [answer.token_ids for answer in read.outputs]


def test_the_same_picture_again_is_found_in_the_cache(llm: LLM) -> None:
    def cached(data: bytes) -> int:
        prompt = {"prompt": "x" * 30 + "<image>" + "y" * 40, "multi_modal_data": {"image": data}}
        (output,) = llm.generate([prompt], GREEDY, use_tqdm=False)
        assert len(output.prompt_token_ids) == 75
        return output.num_cached_tokens

    assert [cached(solid(1, 2, 3)), cached(solid(1, 2, 3)), cached(solid(1, 2, 4))] == [0, 64, 16]


@pytest.mark.row("F-035", "F-708")
@pytest.mark.parametrize("form", [list, torch.stack, lambda rows: torch.stack(rows)[None].double(), np.stack])
def test_embeddings_take_the_place_of_the_encoder(llm: LLM, form: Any) -> None:
    weights = load_file(Path(llm.config.model) / "model.safetensors")
    rows = form([weights["model.embed_tokens.weight"][token] for token in (65, 66, 67, 68)])
    item = {"embeddings": torch.stack(rows)} if isinstance(rows, list) else rows
    found = ask(llm, {"prompt": "see <image>?", "multi_modal_data": {"image": item}})
    assert found == ask(llm, {"prompt": "see ABCD?"})


def test_chat_takes_parts(llm: LLM) -> None:
    parts = [{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {"url": link(solid(*COLOUR))}}]
    (output,) = llm.chat([{"role": "user", "content": parts}], GREEDY, use_tqdm=False)
    assert output.prompt == "see <image>>"
    assert output.outputs[0].token_ids == worth(llm, "see ", list(COLOUR), ">")

    async def inside_a_loop() -> Any:
        return llm.chat([{"role": "user", "content": parts}], GREEDY, use_tqdm=False)

    assert asyncio.run(inside_a_loop())[0].outputs == output.outputs


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"smell": b""}, "unknown kind of media 'smell'"),
        ({"image": "/no/such/file.png"}, "No such file"),
        ({"image": np.zeros((5, 4, 4), np.uint8)}, r"uint8 arrays with 3 axes.*got uint8 \[5, 4, 4\]"),
        ({"image": np.zeros((1, 5, 63), np.float32)}, r"finite numbers \[count, 64\], got \[5, 63\]"),
        ({"image": np.full((5, 64), np.nan, np.float32)}, "finite numbers"),
        ({"image": {"pixels": np.zeros((5, 64), np.float32)}}, "finite numbers"),
        ({"image": [np.zeros((5, 64), np.float32)] * 3}, "may hold 2 items"),
        ({"image": [solid(1, 2, 3)] * 3}, "may hold 2 items of kind image, got 3"),
        ({"image": [solid(1, 2, 3)] * 2}, "1 of 2 items have no place"),
        ({"image": b"nothing"}, "not an image in a supported format"),
        ({"image": "http://127.0.0.1/x"}, "start with --allowed-media-domains 127.0.0.1"),
        ({"audio": np.zeros(5, np.int16)}, r"\(samples, rate\)"),
        ({"audio": ([], 8_000)}, "not empty"),
        ({"video": np.zeros((2, 2, 3), np.uint8)}, "4 axes"),
        ("a string", "must be a mapping"),
    ],
)
def test_what_is_refused(llm: LLM, data: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        ask(llm, {"prompt": "<image>", "multi_modal_data": data})
    assert ask(llm, {"prompt": "<image>", "multi_modal_data": {"image": encode(Image.new("RGB", (2, 2)))}})


def test_vectors_depend_on_media(llm: LLM) -> None:
    def embed(colour: int) -> Any:
        prompt = {"prompt": "<image>", "multi_modal_data": {"image": solid(colour, 2, 3)}}
        return llm.embed(prompt, use_tqdm=False)[0].outputs.embedding

    assert embed(1) == embed(1)
    assert embed(1) != embed(200)


def test_prompts_with_media_are_never_cut(llm: LLM) -> None:
    prompt = {"prompt": "abc<image>", "multi_modal_data": {"image": solid(1, 2, 3)}}
    with pytest.raises(BadRequest, match="would cut a prompt of 8 tokens with media"):
        llm.generate(prompt, GREEDY.replace(truncate_prompt_tokens=5), use_tqdm=False)
    assert llm.generate(prompt, GREEDY.replace(truncate_prompt_tokens=8), use_tqdm=False)


def test_options_are_checked(tmp_path: Path, llm: LLM, family: Plugins) -> None:
    for name, value, message in (
        ("limit_mm_per_prompt", "smell=2", "unknown kind of media 'smell'"),
        ("limit_mm_per_prompt", "image=many", "whole numbers by name"),
        ("allowed_local_media_path", str(tmp_path / "none"), "is not a folder"),
        ("mm_processor_kwargs", "[1]", "must be a JSON object"),
    ):
        with pytest.raises(ConfigError, match=message):
            LLM(llm.config.model, plugins=list(family.names), **{name: value})

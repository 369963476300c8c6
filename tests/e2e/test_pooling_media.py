"""HTTP, transformers and ``LLM`` give the same embeddings of conversations with pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch.nn import functional

from lsv import LLM
from lsv_testing.tiny import tiny

from .conftest import Server

RED, NOISE = (Image.fromarray(array) for array in (
    np.full((32, 32, 3), (255, 0, 0), np.uint8),
    np.random.default_rng(0).integers(0, 255, (200, 300, 3), np.uint8),  # over 64 KiB of base64
))  # fmt: skip
OPTIONS = {"dtype": "float32", "task": "embed", "max_num_batched_tokens": 64, "encoder_cache_tokens": 128}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2_vl")
    tiny("qwen2_vl", folder, tokenizer=True)
    return folder


@pytest.fixture(scope="module")
def site(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    flags = [flag for name, value in OPTIONS.items() for flag in (f"--{name.replace('_', '-')}", str(value))]
    running = Server(tmp_path_factory.mktemp("log") / "log", str(checkpoint), *flags)
    try:
        running.wait_until_ready()
        with httpx2.Client(base_url=running.url, timeout=60) as client:
            yield client
    finally:
        running.stop()


class Reference:
    """transformers' vectors of texts and pictures."""

    def __init__(self, folder: Path) -> None:
        model = transformers.Qwen2VLForConditionalGeneration
        self._model = model.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        self._processor = transformers.AutoImageProcessor.from_pretrained(folder)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def embed(self, content: list[Any]) -> torch.Tensor:
        """The vector of a user's message whose parts are texts and at most one picture."""
        shown: dict[str, Any] = {}
        text = "user: "
        for part in content:
            if isinstance(part, str):
                text += part
                continue
            shown = self._processor(images=[part], return_tensors="pt")
            places = int(shown["image_grid_thw"].prod()) // self._processor.merge_size**2
            text += f"<|vision_start|>{'<|image_pad|>' * places}<|vision_end|>"
        ids = self._tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        kinds = (ids == self._model.config.image_token_id).int()
        states = self._model.model(input_ids=ids, mm_token_type_ids=kinds, **shown).last_hidden_state[0]
        return functional.normalize(states[-1], dim=0)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return Reference(checkpoint)


def content(*parts: Any) -> list[Any]:
    return [{"type": "text", "text": part} if isinstance(part, str) else link(part) for part in parts]


def link(image: Image.Image) -> dict[str, Any]:
    file = io.BytesIO()
    image.save(file, "PNG")
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"},
    }


def post(site: httpx2.Client, path: str, **body: Any) -> Any:
    answer = site.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def embed(site: httpx2.Client, *parts: Any) -> list[float]:
    messages = [{"role": "user", "content": content(*parts)}]
    return list(post(site, "/v1/embeddings", messages=messages)["data"][0]["embedding"])


@pytest.mark.parametrize("parts", [("a dog",), ("see ", RED, "?"), (NOISE,)], ids=["text", "red", "noise"])
def test_vectors_are_those_of_transformers(site: httpx2.Client, reference: Reference, parts: tuple[Any, ...]) -> None:
    found = torch.tensor(embed(site, *parts))
    torch.testing.assert_close(found, reference.embed([*parts]), atol=1e-5, rtol=0)


def test_a_vector_a_token_has_those_of_pictures(site: httpx2.Client) -> None:
    body = {"messages": [{"role": "user", "content": content("see ", RED)}]}
    rows = post(site, "/pooling", task="token_embed", **body)
    assert len(rows["data"][0]["data"]) == rows["usage"]["prompt_tokens"]
    assert rows["data"][0]["data"][-1] == pytest.approx(embed(site, "see ", RED), abs=1e-5)


def test_pictures_are_scored_and_ranked(site: httpx2.Client) -> None:
    vectors = [torch.tensor(embed(site, *parts)) for parts in (("a red square",), (RED,), (NOISE,))]
    expected = [float(vectors[0] @ other) for other in vectors[1:]]
    query, documents = {"content": content("a red square")}, [{"content": content(one)} for one in (RED, NOISE)]
    scored = post(site, "/score", text_1=query, text_2=documents)
    assert [one["score"] for one in scored["data"]] == pytest.approx(expected, abs=1e-5)
    ranked = post(site, "/v1/rerank", query=query, documents=documents)["results"]
    assert [one["relevance_score"] for one in ranked] == pytest.approx(sorted(expected, reverse=True), abs=1e-5)
    assert all("document" not in one for one in ranked)


def test_offline_vectors_are_the_same(site: httpx2.Client, checkpoint: Path) -> None:
    with LLM(str(checkpoint), **OPTIONS) as llm:
        prompt = "user: <|vision_start|><|image_pad|><|vision_end|>"
        (found,) = llm.embed({"prompt": prompt, "multi_modal_data": {"image": RED}}, use_tqdm=False)
        assert list(found.outputs.embedding) == pytest.approx(embed(site, RED), abs=1e-6)

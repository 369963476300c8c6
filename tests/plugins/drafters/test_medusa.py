"""Medusa heads: their arithmetic is the paper's in every published format, and they read the state they belong to."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lsv import LLM, SamplingParams
from lsv.resolve.locate import read_config
from lsv_base.errors import CheckpointError, ConfigError
from lsv_drafters.checkpoint import open_heads
from lsv_drafters.medusa import MedusaHeads
from lsv_testing.fakes.counting import counting_model
from lsv_testing.fakes.medusa import medusa_tensors, write, write_counting_medusa, write_medusa
from lsv_testing.tiny import tiny

PLAIN: dict[str, Any] = {"dtype": "float32", "max_model_len": 96, "max_num_seqs": 4, "skip_tokenizer_init": True}
STATES = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))


def logits(folder: Path, **more: Any) -> list[Tensor]:
    with closing(open_heads(folder)) as source:
        heads = MedusaHeads({**read_config(folder, {}), **more}, source, torch.float32, torch.device("cpu"))
    return [heads.logits(STATES, place) for place in range(heads.places)]


def expected(tensors: dict[str, Tensor], layers: int) -> list[Tensor]:
    found = []
    for place in range(3):
        x = STATES
        for layer in range(layers):
            y = x @ tensors[f"blocks.{place}.layers.{layer}.weight"].T
            x = x + y * torch.sigmoid(y)
        found.append(x @ tensors[f"lm_heads.{place}.weight"].T)
    return found


@pytest.mark.parametrize("layers", [1, 2])
def test_heads_of_either_format_say_the_same(layers: int, tmp_path: Path) -> None:
    tensors = medusa_tensors(64, 320, 3, layers)
    wanted = expected(tensors, layers)
    prefixed = {f"medusa_heads.{name}": tensor for name, tensor in tensors.items()}
    torch.testing.assert_close(logits(write(tmp_path / "v", prefixed, {"num_heads": 3}, 320, layers)), wanted)
    own: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        _, place, *rest = name.split(".")
        own[f"{place}.{rest[1]}.linear.weight" if len(rest) > 1 else f"{place}.{layers}.weight"] = tensor
    own |= {f"{place}.{layer}.linear.bias": torch.zeros(64) for place in range(3) for layer in range(layers)}
    folder = tmp_path / "a"
    folder.mkdir()
    torch.save(own, folder / "medusa_lm_head.pt")
    (folder / "config.json").write_text(json.dumps({"medusa_num_heads": 3, "medusa_num_layers": layers}))
    torch.testing.assert_close(logits(folder), wanted)
    biased = {name: tensor + 1.0 if name.endswith("bias") else tensor for name, tensor in own.items()}
    torch.save(biased, folder / "medusa_lm_head.pt")
    assert not torch.allclose(logits(folder)[2], wanted[2])


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_heads_may_know_some_tokens_and_share_a_matrix(cut: bool, shared: bool, tmp_path: Path) -> None:
    tensors, known = medusa_tensors(64, 320, 3, 1), torch.randperm(320)[:40]
    if shared:
        tensors |= {f"lm_heads.{place}.weight": tensors["lm_heads.0.weight"] for place in range(3)}
    wanted = expected(tensors, 1)
    held = {name: tensor for name, tensor in tensors.items() if not shared or "lm_heads" not in name or ".0." in name}
    held = {name: tensor[known] if cut and "lm_heads" in name else tensor for name, tensor in held.items()}
    more = {"num_heads": 3, "truncated_vocab_size": 40, "original_lm_head": shared, "logit_scale": 0.5}
    found = logits(write(tmp_path / "m", {**held, "token_map": known}, more, 320, 1))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one[:, known], other[:, known] / 2)
        others = torch.ones(320, dtype=torch.bool).index_fill_(0, known, value=False)
        assert one.isfinite().all()
        assert one[:, others].max() < -1e30


@pytest.mark.parametrize("temperature", [0.0, 0.01])
@pytest.mark.parametrize("more", [{}, {"max_num_batched_tokens": 16}], ids=str)
def test_heads_read_the_state_that_the_last_token_came_from(
    temperature: float, more: dict[str, Any], tmp_path: Path
) -> None:
    """Of any other state they would say another number. The first step drafts behind the prompt, all others behind
    drafts that were right."""
    model, heads = counting_model(tmp_path / "m"), write_counting_medusa(tmp_path / "h")
    prompts = [{"prompt_token_ids": ids} for ids in ([5, 9, 40], [7], list(range(60, 20, -1)))]
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=17, ignore_eos=True, detokenize=False)
    drafting = {"model": str(heads), "adaptive": False}
    with LLM(str(model), **{**PLAIN, **more}, speculative_config=drafting) as llm:
        assert llm.config.drafts is not None
        assert (llm.config.drafts.drafter, llm.config.drafts.most) == ("medusa", 3)
        answers = [one.outputs[0].token_ids for one in llm.generate(prompts, params, use_tqdm=False)]
        counts = llm.stats.speculation
    for prompt, answer in zip(prompts, answers, strict=True):
        assert list(answer) == [(prompt["prompt_token_ids"][-1] + 1 + place) % 64 for place in range(17)]
    assert counts.accepted == counts.drafts == 3 * 12


@pytest.mark.parametrize(
    ("shape", "more", "words"),
    [
        ({"hidden": 32}, {}, "reads states of 32 numbers, and those of this model have 64"),
        ({"vocabulary": 300}, {}, "drafts 300 tokens, and the model has 320"),
        ({}, {"num_speculative_tokens": 9}, "drafts 3 at most"),
    ],
)
def test_a_misfit_is_named(shape: dict[str, Any], more: dict[str, Any], words: str, tmp_path: Path) -> None:
    model, heads = tiny("llama", tmp_path / "m"), write_medusa(tmp_path / "h", **shape)
    with pytest.raises(ConfigError, match=words):
        LLM(str(model), **PLAIN, speculative_config={"method": "medusa", "model": str(heads), **more})


def test_what_a_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    folder = write_medusa(tmp_path / "h", places=2)
    with pytest.raises(CheckpointError, match=r"no tensor blocks\.2\.layers\.0\.weight"):
        logits(folder, num_heads=3)
    with pytest.raises(CheckpointError, match="no tensor token_map"):
        logits(folder, truncated_vocab_size=20)
    tensors = {**medusa_tensors(64, 320, 2, 1), "token_map": torch.tensor([3, 3])}
    folder = write(tmp_path / "w", tensors, {"num_heads": 2, "truncated_vocab_size": 2}, 320, 1)
    with pytest.raises(CheckpointError, match="token_map must name different tokens"):
        logits(folder)

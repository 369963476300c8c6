"""EAGLE's heads: what they draft is what their formulas say of the model's states, however these came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from lsv import LLM, SamplingParams
from lsv_base.errors import CheckpointError, ConfigError
from lsv_testing.fakes.counting import counting_model
from lsv_testing.fakes.eagle import DIM, HEADS, KV_HEADS, eagle3_tensors, write, write_counting_eagle, write_eagle
from lsv_testing.fakes.eagle import write_eagle3 as eagle3
from lsv_testing.tiny import tiny

PLAIN: dict[str, Any] = {"dtype": "float32", "max_model_len": 160, "max_num_seqs": 4, "skip_tokenizer_init": True}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)
PROMPTS = ([5, 9, 40], list(range(200, 150, -1)) + [7] * 20, [7, 8])

Draw = Callable[[Sequence[int], int], list[int]]
"""Of a sequence, what is drafted where states are known from a place on."""


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    rates = 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    turns = positions[:, None, None] * torch.cat((rates, rates))
    halves = torch.cat((-x[..., DIM // 2 :], x[..., : DIM // 2]), dim=-1)
    return x * turns.cos() + halves * turns.sin()


def attend(x: Tensor, w: dict[str, Tensor], layer: str, begin: int) -> Tensor:
    positions = torch.arange(len(x)) + float(begin)
    q, k, v = (x @ w[f"{layer}.self_attn.{name}_proj.weight"].T for name in "qkv")
    q = rotate(q.view(-1, HEADS, DIM), positions)
    k = rotate(k.view(-1, KV_HEADS, DIM), positions).repeat_interleave(HEADS // KV_HEADS, dim=1)
    v = v.view(-1, KV_HEADS, DIM).repeat_interleave(HEADS // KV_HEADS, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / DIM**0.5
    scores = scores.masked_fill(torch.ones(len(x), len(x), dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", scores, v).reshape(len(x), -1) @ w[f"{layer}.self_attn.o_proj.weight"].T


def feed(x: Tensor, w: dict[str, Tensor], layer: str) -> Tensor:
    y = norm(x, w[f"{layer}.post_attention_layernorm.weight"])
    gate, up, down = (w[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return x + (torch.nn.functional.silu(y @ gate.T) * (y @ up.T)) @ down.T


def reference(model: Path, heads: Path, *, third: bool, most: int = 3, layers: tuple[int, ...] = (0, 1)) -> Draw:
    """By the papers' formulas, over all states at once."""
    answering = transformers.AutoModelForCausalLM.from_pretrained(model).eval()
    w, matrix = load_file(heads / "model.safetensors"), answering.lm_head.weight.data
    embedding = w.get("embed_tokens.weight", answering.model.embed_tokens.weight.data)

    def first(e: Tensor, s: Tensor, begin: int) -> Tensor:
        if not third:
            x = torch.cat((e, s), dim=-1) @ w["fc.weight"].T + w["fc.bias"]
            return feed(x + attend(x, w, "layers.0", begin), w, "layers.0")
        both = (norm(e, w["midlayer.input_layernorm.weight"]), norm(s, w["midlayer.hidden_norm.weight"]))
        return feed(s + attend(torch.cat(both, dim=-1), w, "midlayer", begin), w, "midlayer")

    def draw(ids: Sequence[int], begin: int) -> list[int]:
        with torch.no_grad():
            every = answering.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        known = [state[0, begin : len(ids) - 1] for state in ((every[k] for k in layers) if third else every[-1:])]
        states = torch.cat(known, dim=-1) @ w["fc.weight"].T if third else known[0]
        after = list(ids[begin + 1 :])
        for _ in range(most):
            last = first(embedding[torch.tensor(after)], states, begin)[-1]
            if third:
                token = int((norm(last, w["norm.weight"]) @ w["lm_head.weight"].T).argmax())
                token += int(w["d2t"][token])
            else:
                token = int((last @ matrix.T).argmax())
            after.append(token)
            states = torch.cat((states, last[None]))
        return after[-most:]

    return draw


def ask(model: Path, prompts: Sequence[Sequence[int]], heads: Path | None, **more: Any) -> tuple[list[Any], Any]:
    drafting = None if heads is None else {"model": str(heads), "num_speculative_tokens": 3, "adaptive": False}
    with LLM(str(model), **{**PLAIN, **more}, speculative_config=drafting) as llm:
        given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        answers = [one.outputs[0].token_ids for one in llm.generate(given, GREEDY, use_tqdm=False)]
        return answers, llm.stats.speculation


@pytest.mark.parametrize("third", [False, True])
@pytest.mark.parametrize("more", [{}, {"max_num_batched_tokens": 48}, {"num_gpu_blocks_override": 11}], ids=str)
def test_drafts_are_those_of_the_formulas(
    third: bool, more: dict[str, Any], tmp_path: Path, drafted: list[tuple[list[int], list[int]]]
) -> None:
    """Alone, where a prompt comes in chunks, and where sequences are preempted and begin again."""
    model = tiny("llama", tmp_path / "m", rms_norm_eps=1e-6)
    heads = (eagle3 if third else write_eagle)(tmp_path / "h")
    common = {"enable_prefix_caching": False, **more}
    assert ask(model, PROMPTS, heads, **common)[0] == ask(model, PROMPTS, None, **common)[0]
    expected = reference(model, heads, third=third)
    assert len(drafted) > 20
    for ids, drafts in drafted:
        assert drafts == expected(ids, 0)[: len(drafts)], (ids, drafts)
        assert drafts


@pytest.mark.parametrize("third", [False, True])
def test_behind_a_cached_prefix_drafts_begin_there(
    third: bool, tmp_path: Path, drafted: list[tuple[list[int], list[int]]]
) -> None:
    model = tiny("llama", tmp_path / "m", rms_norm_eps=1e-6)
    heads = (eagle3 if third else write_eagle)(tmp_path / "h")
    prompts = [list(range(30, 70)), list(range(30, 67))]
    with LLM(str(model), **PLAIN, block_size=16, speculative_config={"model": str(heads), "adaptive": False}) as llm:
        for prompt in prompts:
            drafted.clear()
            llm.generate([{"prompt_token_ids": prompt}], GREEDY, use_tqdm=False)
    expected = reference(model, heads, third=third)
    for ids, drafts in drafted:
        assert drafts[:3] == expected(ids, 32)[: len(drafts)]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"max_num_batched_tokens": 16},
        {"tensor_parallel_size": 2},
        {"platform": "cuda", "emulate": True, "cuda.graph_rows": 4, "max_num_batched_tokens": 256},
        pytest.param({"platform": "hpu", "emulate": True, "max_num_batched_tokens": 256}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_heads_read_the_states_they_belong_to(more: dict[str, Any], tmp_path: Path) -> None:
    """Of any other state they would say another number, whatever the tokens are."""
    model, heads = counting_model(tmp_path / "m"), write_counting_eagle(tmp_path / "h")
    answers, counts = ask(model, PROMPTS, heads, **more)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert list(answer) == [(prompt[-1] + 1 + place) % 64 for place in range(12)]
    assert counts.accepted == counts.drafts > 20


@pytest.mark.parametrize(
    ("shape", "more", "words"),
    [
        ({"hidden": 32}, {}, "reads states of 32 numbers, and those of this model have 64"),
        ({"vocabulary": 300}, {}, "drafts 300 tokens, and the model has 320"),
    ],
)
def test_a_misfit_is_named(shape: dict[str, Any], more: dict[str, Any], words: str, tmp_path: Path) -> None:
    model, heads = tiny("llama", tmp_path / "m"), write_eagle(tmp_path / "h", **shape)
    with pytest.raises(ConfigError, match=words):
        ask(model, PROMPTS, heads, **more)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"eagle_config": {}}, "eagle_aux_hidden_state_layer_ids must be ascending"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false"),
        ({"draft_vocab_size": 100}, "lm_head"),
    ],
)
def test_what_heads_of_eagle_3_can_not_be_is_named(more: dict[str, Any], words: str, tmp_path: Path) -> None:
    model, heads = tiny("llama", tmp_path / "m"), eagle3(tmp_path / "h", **more)
    with pytest.raises(CheckpointError, match=words):
        ask(model, PROMPTS, heads)


def test_a_map_of_tokens_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    model, tensors = tiny("llama", tmp_path / "m"), eagle3_tensors(64, 160, 320, 2)
    tensors["d2t"][3] = 400
    more = {"draft_vocab_size": 160, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}}
    heads = write(tmp_path / "h", tensors, "Eagle3LlamaForCausalLM", 64, 320, **more)
    with pytest.raises(CheckpointError, match="d2t must lead to different tokens"):
        ask(model, PROMPTS, heads)

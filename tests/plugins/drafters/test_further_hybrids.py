"""The layer of Qwen3-Next and Qwen3.5 that predicts further tokens drafts what its formulas say, by transformers'."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from lsv import LLM, SamplingParams
from lsv_base.errors import ConfigError
from lsv_testing.tiny import tiny

PLAIN: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 4, "skip_tokenizer_init": True}
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, detokenize=False)
PROMPTS = ([5, 9, 40], list(range(200, 150, -1)) + [7] * 9, [7, 8])
_DELTA = {
    "layer_types": ["linear_attention", "full_attention", "full_attention"], "num_hidden_layers": 3, "head_dim": 16,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
}  # fmt: skip
_EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3_next": {**_DELTA, **_EXPERTS},
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": {**_DELTA, **_EXPERTS},
}
OWN = {
    "fc.weight": (64, 128), "norm.weight": (64,), "pre_fc_norm_embedding.weight": (64,),
    "pre_fc_norm_hidden.weight": (64,),
}  # fmt: skip


def write(family: str, path: Path, *, tied: bool) -> tuple[Path, Any, dict[str, Tensor]]:
    """A model of two layers, and the third one as that for further tokens: the folder, all three by transformers, and
    what further tensors there are.
    """
    folder = tiny(family, path, **SHAPES[family], tie_word_embeddings=tied)
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    generator = torch.Generator().manual_seed(4)
    own = {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in OWN.items()}
    file = folder / "model.safetensors"
    tensors = {name.replace("model.layers.2.", "mtp.layers.0."): tensor for name, tensor in load_file(file).items()} | {
        f"mtp.{name}": tensor for name, tensor in own.items()
    }
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "layer_types": _DELTA["layer_types"][:2]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, whole, own


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * (1.0 + weight)


@torch.no_grad()
def reference(whole: Any, own: dict[str, Tensor], ids: Sequence[int], most: int) -> list[int]:
    """Over all states at once; layers are transformers'."""
    model, epsilon = whole.model, whole.config.rms_norm_eps
    mask = torch.full((len(ids) + most, len(ids) + most), -torch.inf).triu(1)

    def run(layer: Any, x: Tensor, *, sees: bool) -> Tensor:
        place = torch.arange(len(x))[None]
        found = layer(
            x[None], attention_mask=mask[None, None, : len(x), : len(x)] if sees else None, position_ids=place,
            position_embeddings=model.rotary_emb(x[None], position_ids=place),
        )  # fmt: skip
        return (found[0] if isinstance(found, tuple) else found).view(len(x), -1)

    x = model.embed_tokens(torch.tensor(ids))
    for layer, kind in zip(model.layers[:2], _DELTA["layer_types"], strict=False):
        x = run(layer, x, sees=kind == "full_attention")
    states, after = model.norm(x)[:-1], list(ids[1:])
    for _ in range(most):
        tokens = norm(model.embed_tokens(torch.tensor(after)), own["pre_fc_norm_embedding.weight"], epsilon)
        both = (tokens, norm(states, own["pre_fc_norm_hidden.weight"], epsilon))
        y = run(model.layers[2], torch.cat(both, dim=-1) @ own["fc.weight"].T, sees=True)
        last = norm(y[-1], own["norm.weight"], epsilon)
        after.append(int(whole.lm_head(last).argmax()))
        states = torch.cat((states, last[None]))
    return after[-most:]


@pytest.mark.parametrize(
    ("family", "tied"),
    [("qwen3_next", False), ("qwen3_5_text", True), pytest.param("qwen3_5_moe_text", False, marks=pytest.mark.slow)],
)
def test_drafts_are_those_of_the_formulas(
    family: str, tied: bool, tmp_path: Path, drafted: list[tuple[list[int], list[int]]]
) -> None:
    folder, whole, own = write(family, tmp_path / "m", tied=tied)
    answers = []
    method = "mtp" if tied else "qwen3_next_mtp"
    for drafting in (None, {"method": method, "num_speculative_tokens": 2, "adaptive": False}):
        with LLM(str(folder), **PLAIN, max_num_batched_tokens=48, speculative_config=drafting) as llm:
            given = [{"prompt_token_ids": list(prompt)} for prompt in PROMPTS]
            answers.append([one.outputs[0].token_ids for one in llm.generate(given, GREEDY, use_tqdm=False)])
            speculation = llm.stats.speculation
    assert answers[0] == answers[1]
    assert speculation.drafts > 0
    assert len(drafted) > 15
    for ids, drafts in drafted:
        assert drafts
        assert drafts == reference(whole, own, ids, 2)[: len(drafts)]


@pytest.mark.parametrize(("key", "value"), [("mtp_num_hidden_layers", 0), ("mtp_use_dedicated_embeddings", True)])
def test_what_a_checkpoint_lacks_is_named(key: str, value: Any, tmp_path: Path) -> None:
    folder, _, _ = write("qwen3_5_text", tmp_path / "m", tied=False)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ConfigError, match=key):
        LLM(str(folder), **PLAIN, speculative_config={"method": "mtp"})


@pytest.mark.parametrize("tied", [True, False])
def test_a_published_wrapper_drafts_by_the_same_layer(
    tied: bool, tmp_path: Path, drafted: list[tuple[list[int], list[int]]]
) -> None:
    folder, _, _ = write("qwen3_5_text", tmp_path / "m", tied=tied)
    found = []
    for place in (folder, wrap(folder, tmp_path / "wrapped")):
        drafting = {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}
        with LLM(str(place), **PLAIN, max_num_batched_tokens=48, speculative_config=drafting) as llm:
            given = [{"prompt_token_ids": list(prompt)} for prompt in PROMPTS]
            answers = [one.outputs[0].token_ids for one in llm.generate(given, GREEDY, use_tqdm=False)]
        found.append((answers, sorted(drafted)))
        drafted.clear()
    assert found[0] == found[1]
    assert found[0][1]


def wrap(folder: Path, path: Path) -> Path:
    """The same model as Qwen3.5 is published: its language model beside a tower."""
    path.mkdir()
    text = json.loads((folder / "config.json").read_text())
    whole = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text}
    whole |= {"vision_config": {}, "tie_word_embeddings": text["tie_word_embeddings"]}
    (path / "config.json").write_text(json.dumps(whole))
    tensors = {
        f"model.language_model.{name.removeprefix('model.')}" if name.startswith("model.") else name: tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file({**tensors, "model.visual.pos_embed.weight": torch.ones(2, 2)}, path / "model.safetensors")
    return path

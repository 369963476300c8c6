"""Layers that predict further tokens: what they draft is what transformers' layer says of the model's states."""

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
_GROUPED = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.7, "num_hidden_layers": 3,
}  # fmt: skip
_LATENT = {
    "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 16, "num_key_value_heads": 4,
    "q_lora_rank": 20,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {**_GROUPED, **_LATENT},
    "glm4_moe": {**_GROUPED, "use_qk_norm": True, "attention_bias": True, "head_dim": 16},
}


def write(family: str, path: Path, *, shares: bool) -> tuple[Path, Any, dict[str, Tensor]]:
    """A model of two layers, and the third one as that for further tokens: the folder, all three by transformers, and
    what further tensors there are. One that ``shares`` has no embedding and no matrix of logits of its own."""
    folder = tiny(family, path, **SHAPES[family], tie_word_embeddings=False)
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    generator = torch.Generator().manual_seed(4)
    own = {
        name: torch.randn(shape, generator=generator) * 0.2 + (len(shape) == 1)
        for name, shape in {
            "enorm.weight": (64,), "hnorm.weight": (64,), "eh_proj.weight": (64, 128), "shared_head.norm.weight": (64,),
            "embed_tokens.weight": (320, 64), "shared_head.head.weight": (320, 64),
        }.items()
        if not shares or "norm" in name or "proj" in name
    }  # fmt: skip
    file = folder / "model.safetensors"
    tensors = {**load_file(file), **{f"model.layers.2.{name}": tensor for name, tensor in own.items()}}
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config))
    return folder, whole, own


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


@torch.no_grad()
def reference(whole: Any, own: dict[str, Tensor], ids: Sequence[int], most: int) -> list[int]:
    """The report's formulas, over all states at once; the layer is transformers'."""
    model, epsilon = whole.model, whole.config.rms_norm_eps
    embedding = own.get("embed_tokens.weight", model.embed_tokens.weight)
    matrix = own.get("shared_head.head.weight", whole.lm_head.weight)
    mask = torch.full((len(ids) + most, len(ids) + most), -torch.inf).triu(1)

    def run(layer: Any, x: Tensor) -> Tensor:
        place = torch.arange(len(x))[None]
        turns = model.rotary_emb(x[None], position_ids=place)
        found = layer(
            x[None], attention_mask=mask[None, None, : len(x), : len(x)], position_ids=place, position_embeddings=turns
        )
        return (found[0] if isinstance(found, tuple) else found).view(len(x), -1)

    x = model.embed_tokens(torch.tensor(ids))
    for layer in model.layers[:2]:
        x = run(layer, x)
    states, after = model.norm(x)[:-1], list(ids[1:])
    for _ in range(most):
        tokens = embedding[torch.tensor(after)].clone()
        tokens[0] = 0.0
        both = (norm(tokens, own["enorm.weight"], epsilon), norm(states, own["hnorm.weight"], epsilon))
        last = run(model.layers[2], torch.cat(both, dim=-1) @ own["eh_proj.weight"].T)[-1]
        after.append(int((norm(last, own["shared_head.norm.weight"], epsilon) @ matrix.T).argmax()))
        states = torch.cat((states, last[None]))
    return after[-most:]


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize("shares", [False, True])
def test_drafts_are_those_of_the_formulas(
    family: str, shares: bool, tmp_path: Path, drafted: list[tuple[list[int], list[int]]]
) -> None:
    folder, whole, own = write(family, tmp_path / "m", shares=shares)
    answers = []
    method = "mtp" if shares else "deepseek_mtp"
    for drafting in (None, {"method": method, "num_speculative_tokens": 2, "adaptive": False}):
        with LLM(str(folder), **PLAIN, max_num_batched_tokens=48, speculative_config=drafting) as llm:
            given = [{"prompt_token_ids": list(prompt)} for prompt in PROMPTS]
            answers.append([one.outputs[0].token_ids for one in llm.generate(given, GREEDY, use_tqdm=False)])
    assert answers[0] == answers[1]
    assert len(drafted) > 15
    for ids, drafts in drafted:
        assert drafts
        assert drafts == reference(whole, own, ids, 2)[: len(drafts)]


@pytest.mark.parametrize("format", ["sym_int4", "nf4"])
def test_formats_that_hold_the_embedding_draft_with_it(
    format: str, tmp_path: Path, drafted: list[tuple[list[int], list[int]]]
) -> None:
    """A kernel may have packed its rows."""
    folder, _, _ = write("glm4_moe", tmp_path / "m", shares=True)
    answers = []
    for drafting in (None, {"method": "mtp", "num_speculative_tokens": 2, "adaptive": False}):
        with LLM(str(folder), **PLAIN, quantization=format, speculative_config=drafting) as llm:
            given = [{"prompt_token_ids": list(prompt)} for prompt in PROMPTS]
            answers.append([one.checked().outputs[0].token_ids for one in llm.generate(given, GREEDY, use_tqdm=False)])
    assert answers[0] == answers[1]
    assert len(drafted) > 15
    assert all(drafts for _, drafts in drafted)


@pytest.mark.parametrize(
    ("family", "more", "words"),
    [
        ("llama", {}, "served without layers that predict further tokens"),
        ("deepseek_v3", {}, "has no layers that predict further tokens"),
        ("llama", {"model": "."}, "leave out model"),
    ],
)
def test_what_a_model_lacks_is_named(family: str, more: dict[str, Any], words: str, tmp_path: Path) -> None:
    shape = {"num_nextn_predict_layers": 0} if family != "llama" else {}
    model = tiny(family, tmp_path / "m", **SHAPES.get(family, {}), **shape)
    if more:
        more = {"model": str(model)}
    with pytest.raises(ConfigError, match=words):
        LLM(str(model), **PLAIN, speculative_config={"method": "mtp", **more})

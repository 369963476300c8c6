"""A model with adapters has the logits of the model whose weights these were merged into, token by token."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv.config import EngineConfig
from lsv.plugins.catalog import Catalog
from lsv_base.errors import CheckpointError
from lsv_runtime.worker.load.declared import Declared
from lsv_testing.adapters import linear_layers, merge, write_adapter
from lsv_testing.adapters.filling import load_adapter, with_slots
from lsv_testing.model import PROMPTS, SCHEDULES, Sequences, compare_logits, engine_config, load, run_schedule

SHARING: dict[str, Any] = {
    "head_dim": 16, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "pad_token_id": 0,
}  # fmt: skip
DBRX: dict[str, Any] = {
    "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512, "vocab_size": 320,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.0, "rope_theta": 1e4},
    "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
}  # fmt: skip
GEMMA3N: dict[str, Any] = {**SHARING, "laurel_rank": 8, "vocab_size_per_layer_input": 320}
NATIVE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama", {}),
    "qwen2, biases": ("qwen2", "qwen2", {}),
    "gpt2, transposed and fused": ("gpt2", "gpt2", {}),
    "gpt_neox, fused head by head": ("gpt_neox", "gpt_neox", {}),
    "mixtral, attention alone": ("mixtral", "mixtral", {}),
}
MORE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3": ("qwen3", "qwen3", {}),
    "qwen3_moe": ("qwen3_moe", "qwen3_moe", {}),
    "mistral": ("mistral", "mistral", {}),
    "gemma2": ("gemma2", "gemma2", {}),
    "gemma3n": ("gemma3n_text", "gemma3n", GEMMA3N),
    "gemma4": ("gemma4_text", "gemma4", {**SHARING, "vocab_size_per_layer_input": 320, "attention_k_eq_v": True}),
    "minicpm3": (
        "minicpm3",
        "minicpm3",
        {
            "kv_lora_rank": 24,
            "q_lora_rank": 20,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12,
            "v_head_dim": 16,
            "num_key_value_heads": 4,
        },
    ),
    "phi3, fused": ("phi3", "phi3", {}),
    "bloom": ("bloom", "bloom", {}),
    "mpt": ("mpt", "mpt", {}),
    "falcon": ("falcon", "falcon", {}),
    "opt": ("opt", "opt", {}),
    "gptj": ("gptj", "gptj", {}),
    "gpt_bigcode": ("gpt_bigcode", "gpt_bigcode", {}),
    "persimmon": ("persimmon", "persimmon", {}),
    "starcoder2": ("starcoder2", "starcoder2", {}),
    "cohere": ("cohere", "cohere", {}),
}
GENERIC = {f"generic {family}": (family, "transformers", {}) for family in ("llama", "qwen2", "mixtral", "olmo")}
CASES = {
    **{name: pytest.param(*case, id=name) for name, case in NATIVE.items()},
    **{name: pytest.param(*case, id=name, marks=pytest.mark.slow) for name, case in {**MORE, **GENERIC}.items()},
}
SKIPPED = (
    "experts", "router", "mlp.gate", "block_sparse_moe.gate", "altup", "per_layer_model_projection", "kv_b_proj",
)  # fmt: skip
"""What takes no adapters."""
SLOTS = {1: 0, 2: 1, 3: 0}
"""The sequences that go through adapters, and the slots of these."""


def adapted(config: EngineConfig, catalog: Catalog, *folders: Path) -> Declared:
    """A filled model with the adapters of ``folders`` in its slots."""
    declared, store = with_slots(config, catalog, len(folders))
    for slot, folder in enumerate(folders):
        load_adapter(store, slot + 1, folder)
        store.enter(slot, slot + 1)
    assert not store.faults
    return declared


def logits_of(declared: Declared, schedule: str, slots: dict[int, int]) -> dict[int, torch.Tensor]:
    sequences = Sequences(declared)
    sequences.adapters = slots
    return run_schedule(sequences, SCHEDULES[schedule])


def compare_with_merged(
    base: Path, offer: str, catalog: Catalog, folders: list[Path], slots: dict[int, int], tmp_path: Path
) -> None:
    """Sequences through the adapters of ``folders``, beside others, have the logits of merged weights, and other ones
    than without.
    """
    config = engine_config(base, offer)
    model = adapted(config, catalog, *folders)
    found = logits_of(model, "mixed", slots)
    plain = logits_of(load(config, catalog), "whole", {})
    merged = [
        logits_of(load(engine_config(merge(tmp_path / f"m{n}", base, folder), offer), catalog), "whole", {})
        for n, folder in enumerate(folders)
    ]
    expected = {s: plain[s] if s not in slots else merged[slots[s]][s] for s in PROMPTS}
    assert compare_logits("mixed", found, expected).error <= 1e-4
    assert all((found[s] - plain[s]).abs().max() > 0.1 for s in slots)


@pytest.mark.row("F-726", "F-730")
@pytest.mark.parametrize(("family", "offer", "shape"), CASES.values())
def test_logits_are_those_of_merged_weights(
    family: str,
    offer: str,
    shape: dict[str, Any],
    checkpoint: Callable[..., Path],
    catalog: Catalog,
    tmp_path: Path,
) -> None:
    base = checkpoint(family, **shape)
    modules = list(linear_layers(base, SKIPPED))
    assert modules
    across = family == "gpt2"
    folders = [
        write_adapter(tmp_path / "one", base, modules, seed=1, spread=0.1, transposed=across),
        write_adapter(
            tmp_path / "two", base, modules[1:], seed=2, spread=0.1, rank=8, use_rslora=True, alpha=4.0,
            transposed=across, target_modules=r".*\.\d+\..*",
        ),
    ]  # fmt: skip
    compare_with_merged(base, offer, catalog, folders, SLOTS, tmp_path)


def test_adapters_of_what_latent_attention_takes_apart_are_refused(
    checkpoint: Callable[..., Path], catalog: Catalog, tmp_path: Path
) -> None:
    family, offer, shape = MORE["minicpm3"]
    base = checkpoint(family, **shape)
    modules = [name for name in linear_layers(base, ()) if name.endswith(("kv_b_proj", "o_proj"))]
    folder = write_adapter(tmp_path / "one", base, modules, seed=1)
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.kv_b_proj"):
        adapted(engine_config(base, offer), catalog, folder)


def test_a_model_that_clips_its_projections_has_adapters_elsewhere(
    checkpoint: Callable[..., Path], catalog: Catalog, tmp_path: Path
) -> None:
    base = checkpoint("dbrx", **DBRX)
    modules = [name for name in linear_layers(base, ()) if name.endswith("out_proj")]
    folders = [write_adapter(tmp_path / str(seed), base, modules, seed=seed, spread=0.3) for seed in (1, 2)]
    compare_with_merged(base, "dbrx", catalog, folders, SLOTS, tmp_path)


DORA = ("llama", "qwen2, biases", "gpt2, transposed and fused", "gpt_neox, fused head by head")


@pytest.mark.row("F-726")
@pytest.mark.parametrize(
    ("family", "offer", "shape"),
    [CASES[name] for name in DORA] + [CASES[name] for name in CASES if name not in DORA and "moe" not in name],
)
def test_magnitudes_are_those_of_merged_weights(
    family: str,
    offer: str,
    shape: dict[str, Any],
    checkpoint: Callable[..., Path],
    catalog: Catalog,
    tmp_path: Path,
) -> None:
    """DoRA beside plain LoRA and none; with ranks of single modules, and stabilised."""
    base = checkpoint(family, **shape)
    modules, across = list(linear_layers(base, SKIPPED)), family == "gpt2"
    wide = {modules[0]: 8, modules[-1]: 2}
    folders = [
        write_adapter(tmp_path / "one", base, modules, seed=1, spread=0.1, transposed=across),
        write_adapter(
            tmp_path / "two", base, modules[1:], seed=2, spread=0.1, ranks={modules[-1]: 2},
            alpha=4.0, use_rslora=True, transposed=across, dora=True,
        ),
        write_adapter(tmp_path / "three", base, modules, seed=3, spread=0.1, ranks=wide, transposed=across, dora=True),
    ]  # fmt: skip
    compare_with_merged(base, offer, catalog, folders, {0: 1, 1: 0, 2: 2}, tmp_path)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_experts(family: str, checkpoint: Callable[..., Path], catalog: Catalog, tmp_path: Path) -> None:
    """Adapters of all experts and of some, beside others."""
    base = checkpoint(family)
    modules = list(linear_layers(base, ("router", "mlp.gate", "block_sparse_moe.gate")))
    experts = [name for name in modules if "experts" in name]
    given = [modules, experts[1::3], [name for name in modules if "experts" not in name]]
    assert all(given)
    folders = [write_adapter(tmp_path / str(n), base, one, seed=n, spread=0.1) for n, one in enumerate(given)]
    config = engine_config(base, family)
    declared = adapted(config, catalog, *folders)
    found = logits_of(declared, "mixed", {0: 0, 1: 1, 2: 2})
    expected = logits_of(load(config, catalog), "whole", {})
    for n, folder in enumerate(folders):
        merged = engine_config(merge(tmp_path / f"m{n}", base, folder), family)
        plain, expected[n] = expected[n], logits_of(load(merged, catalog), "whole", {})[n]
        assert (expected[n] - plain).abs().max() > 0.05
    assert compare_logits("mixed", found, expected).error <= 1e-4


@pytest.mark.parametrize("tied", [False, True], ids=["a head of its own", "tied"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_embeddings_and_heads(
    family: str, tied: bool, checkpoint: Callable[..., Path], catalog: Catalog, tmp_path: Path
) -> None:
    """Low-rank products with them and copies of them, of either alone and of both, beside others."""
    base = checkpoint(family, tie_word_embeddings=tied)
    modules, embed, head = list(linear_layers(base)), ["model.embed_tokens"], ["lm_head"]
    given: list[dict[str, Any]] = [
        {"modules": head, "embeddings": embed},
        {"modules": modules[:3], "copies": embed + head},
        {"modules": modules, "copies": embed},
        {"modules": head, "copies": embed},
    ]
    folders = [write_adapter(tmp_path / str(n), base, seed=n, spread=0.1, **one) for n, one in enumerate(given)]
    slots = dict(enumerate(range(4)))
    config = engine_config(base, family)
    declared = adapted(config, catalog, *folders)
    for schedule in ("mixed", "whole"):
        found = logits_of(declared, schedule, slots)
        expected = logits_of(load(config, catalog), "whole", {})
        for n, folder in enumerate(folders):
            merged = tmp_path / f"m{n}"
            if not merged.exists():
                merge(merged, base, folder)
            plain, expected[n] = expected[n], logits_of(load(engine_config(merged, family), catalog), "whole", {})[n]
            assert (expected[n] - plain).abs().max() > 0.1
        assert compare_logits(schedule, found, expected).error <= 1e-4
        assert all(torch.equal(found[s], logits_of(declared, schedule, {})[s]) for s in found if s not in slots)


def test_another_adapter_in_the_slot_of_one_with_magnitudes(
    checkpoint: Callable[..., Path], catalog: Catalog, tmp_path: Path
) -> None:
    base = checkpoint("qwen2")
    modules = list(linear_layers(base))
    folders = [write_adapter(tmp_path / str(n), base, modules, seed=n, dora=n == 1) for n in range(2)]
    config = engine_config(base, "qwen2")
    declared, store = with_slots(config, catalog, 1)
    found: list[dict[int, torch.Tensor]] = []
    for number, folder in enumerate(folders):
        load_adapter(store, number, folder)
    for number in (0, 1, 0, 1):  # the host keeps one, so each is read again
        store.enter(0, number)
        found.append(logits_of(declared, "whole", dict.fromkeys(PROMPTS, 0)))
    assert not store.faults
    assert all(torch.equal(found[0][s], found[2][s]) and torch.equal(found[1][s], found[3][s]) for s in PROMPTS)
    assert all((found[0][s] - found[1][s]).abs().max() > 0.1 for s in PROMPTS)


def test_ranks_and_alphas_by_pattern(checkpoint: Callable[..., Path], catalog: Catalog, tmp_path: Path) -> None:
    base = checkpoint("llama")
    modules = [name for name in linear_layers(base) if name.endswith(("q_proj", "down_proj"))]
    wide = {name: 8 for name in modules if "layers.1" in name}
    folder = write_adapter(tmp_path / "a", base, modules, ranks=wide)
    patterned = write_adapter(
        tmp_path / "b", base, modules, ranks=wide, rank_pattern={r"layers\.1\..*": 8}, alpha_pattern={"down_proj": 2.0}
    )
    config = engine_config(base, "llama")
    plain = logits_of(adapted(config, catalog, folder), "whole", {0: 0})
    other = logits_of(adapted(config, catalog, patterned), "whole", {0: 0})
    assert (plain[0] - other[0]).abs().max() > 0.01
    folder = write_adapter(
        tmp_path / "a", base, modules, ranks=wide, rank_pattern={"model.layers.1.self_attn.q_proj": 8}
    )
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.down_proj has lora_A .* gives rank 4"):
        adapted(config, catalog, folder)


def test_saved_by_torch(checkpoint: Callable[..., Path], catalog: Catalog, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    base = checkpoint("llama")
    folder = write_adapter(tmp_path / "a", base, [name for name in linear_layers(base) if "v_proj" in name])
    config = engine_config(base, "llama")
    expected = logits_of(adapted(config, catalog, folder), "whole", SLOTS | {2: 0})
    weights = folder / "adapter_model.safetensors"
    torch.save(load_file(weights), folder / "adapter_model.bin")
    weights.unlink()
    found = logits_of(adapted(config, catalog, folder), "whole", SLOTS | {2: 0})
    assert all(torch.equal(found[s], expected[s]) for s in expected)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (["model.layers.0.mlp.experts.0.w1"], "experts"),
        (["model.embed_tokens"], "embed_tokens"),
    ],
)
def test_modules_that_take_none_are_named(
    modules: list[str], message: str, checkpoint: Callable[..., Path], catalog: Catalog, tmp_path: Path
) -> None:
    base = checkpoint("llama")
    folder = write_adapter(tmp_path / "a", base, list(linear_layers(base))[:1])
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "adapter_model.safetensors")
    renamed = {
        f"base_model.model.{modules[0]}.lora_{'A' if '.lora_A.' in name else 'B'}.weight": tensor
        for name, tensor in tensors.items()
    }
    save_file(renamed, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": "all-linear"}'
    )
    with pytest.raises(CheckpointError, match=message):
        adapted(engine_config(base, "llama"), catalog, folder)


@pytest.mark.row("F-291", "F-727", "F-729")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"copies": ["model.embed_tokens", "lm_head"]}, "tokens that an adapter adds are not served"),
        ({"embeddings": ["model.embed_tokens"]}, "tokens that an adapter adds are not served"),
        ({"copies": ["model.layers.0.self_attn.q_proj"]}, "whole copies are served of embeddings and heads"),
        ({"modules": ["lm_head"], "dora": True}, "lm_head: use_dora is not served"),
    ],
)
def test_what_changes_the_vocabulary_is_refused(
    change: dict[str, Any], message: str, checkpoint: Callable[..., Path], catalog: Catalog, tmp_path: Path
) -> None:
    base, wider = checkpoint("llama"), checkpoint("llama", vocab_size=330)
    folder = write_adapter(tmp_path / "a", wider if "dora" not in change else base, **{"modules": [], **change})
    with pytest.raises(CheckpointError, match=message):
        adapted(engine_config(base, "llama"), catalog, folder)


def test_what_slots_cannot_hold_is_refused(checkpoint: Callable[..., Path], catalog: Catalog, tmp_path: Path) -> None:
    base = checkpoint("llama")
    modules = list(linear_layers(base))[:1]
    folder = write_adapter(tmp_path / "a", base, modules)
    config = folder / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "lora_alpha": 1e300}))
    with pytest.raises(CheckpointError, match=r"lora_B of .*, scaled, holds weights that are not finite"):
        adapted(engine_config(base, "llama"), catalog, folder)


def test_an_adapter_for_another_model_is_refused(
    checkpoint: Callable[..., Path], catalog: Catalog, tmp_path: Path
) -> None:
    base = checkpoint("llama")
    other = checkpoint("llama", hidden_size=32)
    folder = write_adapter(tmp_path / "a", other, list(linear_layers(other)))
    with pytest.raises(CheckpointError, match=r"has 96 inputs and 64 outputs, .* another model"):
        adapted(engine_config(base, "llama"), catalog, folder)

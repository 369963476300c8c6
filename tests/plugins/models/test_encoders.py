"""Every encoder gives transformers' states and scores, for rows of several lengths in one flat step without a cache."""

import json
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from lsv.kv.spec import KVGroup
from lsv.request.pooling import Pooler
from lsv_base.errors import CheckpointError
from lsv_runtime.attention import BatchLayout, CacheSpec
from lsv_runtime.attention.dense import DenseAttention
from lsv_runtime.nn.model import run
from lsv_runtime.nn.step import Step
from lsv_runtime.worker.load.declared import Declared, declare
from lsv_testing.model import engine_config, load
from lsv_testing.tiny import draw_weights

SHAPE: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
DISTIL = {"vocab_size": 97, "dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 64}
KINDS = ["full_attention", "sliding_attention", "full_attention"]
SPECIALS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", SHAPE),
    "roberta": ("roberta", {**SHAPE, "pad_token_id": 1, "type_vocab_size": 1}),
    "xlm-roberta": ("roberta", {**SHAPE, "pad_token_id": 1, "type_vocab_size": 1}),
    "distilbert": ("distilbert", DISTIL),
    "modernbert": ("modernbert", {**SHAPE, **SPECIALS, "local_attention": 6, "layer_types": KINDS}),
    "nomic_bert": ("nomic_bert", SHAPE),
    "gte": ("gte", {**SHAPE, "pad_token_id": 1}),
}
HEADS = {
    "bare": "AutoModel",
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
}
LENGTHS = (7, 20, 1, 13)
PAIRED = ("bert", "nomic_bert")


@pytest.fixture(scope="module")
def ids() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 97, (length,), generator=generator).tolist() for length in LENGTHS]


def make(family: str, head: str, path: Any, **changes: Any) -> Any:
    """A tiny random checkpoint at ``path``, and the model it is of."""
    config = transformers.CONFIG_MAPPING[family](**{**FAMILIES[family][1], **changes}, num_labels=3)
    torch.manual_seed(0)
    model = getattr(transformers, HEADS[head]).from_config(config, dtype=torch.float32).eval()
    draw_weights(model, 0.2)
    model.save_pretrained(path)
    return model


def encode(declared: Declared, rows: list[list[int]], types: torch.Tensor | None) -> torch.Tensor:
    """The states of all tokens of all rows in one step."""
    lengths = np.array([len(row) for row in rows], np.int32)
    backend: Any = DenseAttention()
    backend.allocate(CacheSpec((), declared.layers, 1, 8, torch.float32), None)
    plan = backend.plan(BatchLayout(lengths, lengths, ()), KVGroup(0, "full", (), 0))
    positions = torch.cat([torch.arange(len(row)) for row in rows])[None]
    tokens = torch.tensor([token for row in rows for token in row])
    return run(declared.model, Step(tokens, positions, backend, (plan,), None, torch.arange(len(tokens)), types=types))


@pytest.mark.row("F-669", "F-670")
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_encoder_equals_transformers(family, head, catalog, tmp_path, ids):
    model = make(family, head, tmp_path)
    config = engine_config(tmp_path, FAMILIES[family][0], max_len=40, cached=False, pooler=Pooler(task="embed"))
    declared = load(config, catalog)
    assert declared.groups == ()
    assert not any(layer.causal for layer in declared.layers)
    second = torch.cat([(torch.arange(len(row)) >= len(row) // 2).long() for row in ids])
    states = encode(declared, ids, second if family in PAIRED else None)
    start = 0
    for row in ids:
        own = slice(start, start + len(row))
        more = {"token_type_ids": second[own][None]} if family in PAIRED else {}
        with torch.inference_mode():
            expected = model(torch.tensor([row]), attention_mask=torch.ones(1, len(row), dtype=torch.long), **more)
        found, start = states[own], own.stop
        if head == "bare":
            torch.testing.assert_close(found, expected.last_hidden_state[0], atol=1e-4, rtol=0)
        else:
            assert declared.model.scorer is not None
            wanted = expected.logits[0] if head == "token" else expected.logits
            scores = declared.model.scorer(found if head == "token" else found[:1])
            torch.testing.assert_close(scores, wanted, atol=1e-4, rtol=0)


def test_comparison_sees_missing_types_and_windows(catalog, tmp_path, ids):
    make("bert", "bare", tmp_path / "bert")
    make("modernbert", "bare", tmp_path / "modern")
    settings: dict[str, Any] = {"max_len": 40, "cached": False, "pooler": Pooler(task="embed")}
    bert = load(engine_config(tmp_path / "bert", "bert", **settings), catalog)
    second = torch.cat([torch.ones(len(row), dtype=torch.long) for row in ids])
    assert (encode(bert, ids, second) - encode(bert, ids, None)).abs().max() > 0.1
    modern = (
        load(engine_config(tmp_path / "modern", "modernbert", **settings, overrides=changed), catalog)
        for changed in ({}, {"local_attention": 64})
    )
    own, wide = (encode(one, ids, None) for one in modern)
    assert (own - wide).abs().max() > 0.1


def test_inputs_that_have_no_places_are_refused(catalog, tmp_path):
    make("roberta", "bare", tmp_path)
    with pytest.raises(CheckpointError, match="places for 62 tokens"):
        declare(engine_config(tmp_path, "roberta", max_len=63, cached=False), catalog)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("bert", {"position_embedding_type": "relative_key"}),
        ("bert", {"attention_of_the_future": 3}),
        ("nomic_bert", {"prenorm": True}),
        ("gte", {"layer_norm_type": "rms_norm"}),
    ],
)
def test_what_is_not_computed_is_refused(family, change, catalog, tmp_path):
    make(family, "bare", tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**written, **change}))
    with pytest.raises(CheckpointError, match=next(iter(change))):
        declare(engine_config(tmp_path, FAMILIES[family][0], max_len=40, cached=False), catalog)

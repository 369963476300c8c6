"""Vectors do not depend on how a prompt is cut into steps, and are what sentence-transformers defines."""

import json
import struct
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from lsv.request.params import PoolingParams
from lsv.request.pooling import Pooler
from lsv_base.errors import CheckpointError
from lsv_runtime.nn.pooling.states import Gathered, Pool
from lsv_runtime.worker.load.dense import load_dense

pytestmark = pytest.mark.onednn

STATES = torch.randn(11, 6, generator=torch.Generator().manual_seed(3))
PLACES = torch.arange(1.0, 12.0)[:, None]
EXPECTED = {
    "last": STATES[-1],
    "cls": STATES[0],
    "mean": STATES.mean(0),
    "max": STATES.amax(0),
    "sqrt": STATES.sum(0) / 11**0.5,
    "weighted": (STATES * PLACES).sum(0) / PLACES.sum(),
    "all": STATES,
}


def gather(kind, chunks):
    """What is kept of states that come in chunks of these sizes."""
    gathered, start = Gathered(kind), 0
    for count in chunks:
        span = gathered.span(start, count, ends=start + count == 11)
        if span is not None:
            gathered.add(STATES[start + span[0] : start + span[1]], start + span[0])
        start += count
    return gathered


def pool(pooler, params, *kinds, scorer=None, dense=()):
    slots = [SimpleNamespace(gathered=gather(kind, [11]), begin=SimpleNamespace(pooling=params)) for kind in kinds]
    found = Pool(pooler, scorer, dense)(slots)
    return [None if one is None else torch.tensor(struct.unpack(f"<{len(one) // 4}f", one)) for one in found]


@pytest.mark.parametrize("chunks", [[11], [5, 6], [1, 1, 9]])
@pytest.mark.parametrize("kind", EXPECTED)
def test_kinds_of_pooling(kind, chunks):
    found = gather(kind, chunks).states()
    torch.testing.assert_close(found.squeeze(0) if kind != "all" else found, EXPECTED[kind])


def test_only_what_is_needed_is_gathered():
    assert Gathered("last").span(0, 5, ends=False) is None
    assert Gathered("last").span(5, 6, ends=True) == (5, 6)
    assert Gathered("cls").span(0, 5, ends=False) == (0, 1)
    assert Gathered("mean").span(5, 6, ends=True) == (0, 6)


def test_vectors_are_cut_and_then_scaled():
    params = PoolingParams(dimensions=4, kind="mean")
    (found,) = pool(Pooler(task="embed"), params, "mean")
    cut = STATES.mean(0)[:4]
    torch.testing.assert_close(found, cut / cut.norm())
    (raw,) = pool(Pooler(task="embed", normalize=False), PoolingParams(kind="mean"), "mean")
    torch.testing.assert_close(raw, STATES.mean(0))
    (asked,) = pool(Pooler(task="embed", normalize=False), PoolingParams(kind="mean", normalize=True), "mean")
    torch.testing.assert_close(asked.norm(), torch.tensor(1.0))


@pytest.mark.parametrize("activation", ["none", "sigmoid", "softmax"])
def test_scores_become_probabilities_unless_they_shall_not(activation):
    scorer = torch.nn.Linear(6, 3)
    pooler = Pooler(task="classify", activation=activation, labels=("a", "b", "c"))
    logits = scorer(STATES[0]).detach()
    expected = {"none": logits, "sigmoid": logits.sigmoid(), "softmax": logits.softmax(-1)}[activation]
    torch.testing.assert_close(pool(pooler, PoolingParams(), "cls", scorer=scorer)[0], expected)
    torch.testing.assert_close(pool(pooler, PoolingParams(use_activation=False), "cls", scorer=scorer)[0], logits)


@pytest.mark.parametrize(("task", "kind"), [("embed", "cls"), ("token_embed", "all")])
def test_a_classifier_that_embeds_gives_the_states_before_its_head(task, kind):
    pooler = Pooler(task="classify", kind="cls", labels=("a",), activation="sigmoid", embeds=True)
    head = torch.nn.Linear(6, 1)
    (found,) = pool(pooler, PoolingParams(task=task, kind=kind), kind, scorer=head)
    wanted = torch.nn.functional.normalize(EXPECTED[kind], dim=-1)
    torch.testing.assert_close(found, wanted.flatten(), atol=1e-6, rtol=0)
    (score,) = pool(pooler, PoolingParams(task="score", kind="cls"), "cls", scorer=head)
    torch.testing.assert_close(score, head(EXPECTED["cls"]).sigmoid().detach(), atol=1e-6, rtol=0)


def test_a_row_that_is_not_finite_fails_alone():
    good, bad = (
        SimpleNamespace(gathered=Gathered("last"), begin=SimpleNamespace(pooling=PoolingParams())) for _ in "ab"
    )
    good.gathered.add(STATES[:1], 0)
    bad.gathered.add(torch.full((1, 6), torch.nan), 0)
    found = Pool(Pooler(task="embed"))([good, bad])
    assert found[0] is not None
    assert found[1] is None


def test_dense_layers_of_sentence_transformers(tmp_path):
    weight, bias = torch.randn(4, 6), torch.randn(4)
    config = {
        "in_features": 6,
        "out_features": 4,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"linear.weight": weight, "linear.bias": bias}, tmp_path / "model.safetensors")
    dense = load_dense(tmp_path, torch.device("cpu"))
    torch.testing.assert_close(dense(STATES), torch.tanh(STATES @ weight.T + bias))
    (tmp_path / "config.json").write_text(json.dumps({**config, "activation_function": "os.system"}))
    with pytest.raises(CheckpointError, match="activation_function system"):
        load_dense(tmp_path, torch.device("cpu"))

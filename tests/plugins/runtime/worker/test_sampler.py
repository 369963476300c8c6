"""The batched sampler against a plain reference: one row, Python loops, float64."""

import math
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lsv.request.params import NO_TOKEN_LEFT
from lsv_runtime.nn import sample_ops, sampling
from lsv_runtime.nn.philox import uniform
from lsv_runtime.nn.sampling import Sampling
from lsv_runtime.worker.sampling.sampler import NOT_FINITE, sample_rows
from lsv_runtime.worker.slots import Slot

pytestmark = pytest.mark.onednn

MakeSlot = Callable[..., Slot]


VOCABULARY = 211


def constrained_logits(logits: list[float], slot: Slot) -> list[float]:
    """The logits after allowed ids, bad words, min_tokens, bias and penalties."""
    params = slot.params
    output = slot.ids[slot.prompt :].tolist()
    x = list(logits)
    for token in range(len(x)):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            x[token] = -math.inf
    for word in slot.begin.bad_words:
        if output[len(output) - len(word) + 1 :] == list(word[:-1]) and len(output) >= len(word) - 1:
            x[word[-1]] = -math.inf
    if len(output) < params.min_tokens:
        for token in slot.begin.stop_ids:
            x[token] = -math.inf
    for token, bias in params.logit_bias.items():
        x[token] += bias
    counts = Counter(output)
    for token in set(slot.ids.tolist()):
        x[token] *= 1 / params.repetition_penalty if x[token] > 0 else params.repetition_penalty
        x[token] -= params.frequency_penalty * counts[token]
        x[token] -= params.presence_penalty * (counts[token] > 0)
    return x


def probabilities(x: list[float], slot: Slot) -> list[float]:
    """The distribution after temperature, top-k, top-p and min-p."""
    params = slot.params
    best = max(x)
    weights = [math.exp((value - best) / params.temperature) for value in x]
    order = sorted(range(len(x)), key=lambda token: -weights[token])
    if params.top_k > 0:
        for token in order[params.top_k :]:
            weights[token] = 0.0
    total, running = sum(weights), 0.0
    if params.top_p < 1.0:
        for token in order:
            if running >= params.top_p * total:
                weights[token] = 0.0
            running += weights[token]
    for token in order:
        if weights[token] < params.min_p * max(weights):
            weights[token] = 0.0
    total = sum(weights)
    return [weight / total for weight in weights]


def reference_token(logits: list[float], slot: Slot) -> int:
    x = constrained_logits(logits, slot)
    if slot.params.greedy:
        return x.index(max(x))
    point = uniform([slot.begin.seed], [len(slot.ids)])[0] / 2**32
    running = 0.0
    for candidate, share in enumerate(probabilities(x, slot)):
        running += share
        if point < running:
            return candidate
    raise AssertionError("the shares add up to 1")


def random_logits(rows: int, seed: int, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


def some_tokens(chance: random.Random, count: int) -> tuple[int, ...]:
    return tuple(chance.sample(range(VOCABULARY), count))


FIELDS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "greedy": lambda r: {"temperature": 0.0},
    "temperature": lambda r: {"temperature": r.uniform(0.2, 3.0)},
    "top_k": lambda r: {"top_k": r.randint(1, 2 * VOCABULARY)},
    "top_p": lambda r: {"top_p": r.uniform(0.05, 1.0)},
    "min_p": lambda r: {"min_p": r.uniform(0.0, 1.0)},
    "repetition": lambda r: {"repetition_penalty": r.uniform(0.5, 2.0)},
    "presence": lambda r: {"presence_penalty": r.uniform(-2, 2)},
    "frequency": lambda r: {"frequency_penalty": r.uniform(-2, 2)},
    "bias": lambda r: {"logit_bias": {r.randrange(VOCABULARY): r.uniform(-9, 9) for _ in range(5)}},
    "allowed": lambda r: {"allowed_token_ids": some_tokens(r, 20)},
    "min_tokens": lambda r: {"min_tokens": r.randint(0, 12), "stop_ids": some_tokens(r, 40)},
    "bad_words": lambda r: {"bad_words": tuple((r.randrange(4), r.randrange(VOCABULARY)) for _ in range(90))},
}


def random_slot(make_slot: MakeSlot, chance: random.Random, names: list[str]) -> Slot:
    chosen: dict[str, Any] = {}
    for name in names:
        chosen |= FIELDS[name](chance)
    bad_words = chosen.pop("bad_words", ())
    longer = tuple((*word, chance.randrange(VOCABULARY)) for word in bad_words[::5])
    return make_slot(
        [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 12))],
        [chance.randrange(4) for _ in range(chance.randint(0, 12))],
        engine_seed=chance.getrandbits(64),
        bad_words=bad_words + longer,
        **chosen,
    )


@pytest.mark.row("F-039", "F-040", "F-041", "F-042", "F-043", "F-044", "F-045", "F-055", "F-345")
@pytest.mark.parametrize("field", FIELDS)
def test_each_field_alone_equals_the_reference(make_slot: MakeSlot, field: str) -> None:
    chance = random.Random(field)
    slots = [random_slot(make_slot, chance, [field]) for _ in range(60)]
    logits = random_logits(60, seed=1)
    expected = [reference_token(row, slot) for row, slot in zip(logits.tolist(), slots, strict=True)]
    assert sample_rows(logits, slots).tokens == expected


@pytest.mark.parametrize("seed", range(4))
def test_random_mixtures_of_fields_equal_the_reference(make_slot: MakeSlot, seed: int) -> None:
    chance = random.Random(seed)
    drawing = [name for name in FIELDS if name != "greedy"]
    names = [chance.sample(drawing, chance.randint(0, 8)) for _ in range(70)]
    slots = [random_slot(make_slot, chance, sorted(some)) for some in names]
    logits = random_logits(70, seed)
    expected = [reference_token(row, slot) for row, slot in zip(logits.tolist(), slots, strict=True)]
    assert sample_rows(logits, slots).tokens == expected


def test_a_row_does_not_depend_on_its_batch(make_slot: MakeSlot) -> None:
    chance = random.Random(5)
    slots = [random_slot(make_slot, chance, chance.sample(sorted(FIELDS), 4)) for _ in range(50)]
    logits = random_logits(50, seed=5, vocabulary=VOCABULARY)
    together = sample_rows(logits.clone(), slots).tokens
    alone = [sample_rows(logits[row : row + 1].clone(), [slots[row]]).tokens[0] for row in range(50)]
    order = list(range(50))
    chance.shuffle(order)
    shuffled = sample_rows(logits[order], [slots[row] for row in order]).tokens
    assert together == alone
    assert shuffled == [together[row] for row in order]


def test_a_large_vocabulary_uses_every_path_of_top_p(make_slot: MakeSlot) -> None:
    """A flat distribution's nucleus is larger than the candidates looked at first."""
    logits = torch.cat((random_logits(2, 6, 4000), random_logits(2, 7, 4000) * 0.01))
    slots = [make_slot(engine_seed=row, top_p=0.9) for row in range(4)]
    expected = [reference_token(row, slot) for row, slot in zip(logits.tolist(), slots, strict=True)]
    assert sample_rows(logits, slots).tokens == expected


def test_greedy_ties_go_to_the_lowest_id(make_slot: MakeSlot) -> None:
    logits = torch.zeros(2, 1000)
    logits[0, [700, 30, 999]] = 5.0
    assert sample_rows(logits, [make_slot(temperature=0.0)] * 2).tokens == [30, 0]


def test_tokens_tied_with_the_last_one_kept_stay(make_slot: MakeSlot) -> None:
    logits = torch.full((1, 50), -30.0)
    logits[0, [10, 20, 30]] = torch.tensor([2.0, 1.0, 1.0])
    for params in ({"top_k": 2}, {"top_p": 0.7}):
        drawn = {
            sample_rows(logits.clone(), [make_slot(output=[0] * place, engine_seed=1, **params)]).tokens[0]
            for place in range(100)
        }
        assert drawn == {10, 20, 30}


@pytest.mark.row("F-042", "F-345")
@pytest.mark.parametrize(
    "params", [{"temperature": 0.7}, {"temperature": 1.6, "top_k": 9}, {"top_p": 0.8}, {"min_p": 0.1}]
)
def test_draws_follow_the_distribution(make_slot: MakeSlot, params: dict[str, Any]) -> None:
    """Chi-square over 5 000 draws with fixed seeds, at p = 0.0001."""
    draws = 5_000
    logits = random_logits(1, seed=8, vocabulary=40)[0] / 2
    expected = torch.tensor(probabilities(logits.tolist(), make_slot(**params))) * draws
    slots = [make_slot(engine_seed=seed, vocabulary=40, **params) for seed in range(draws)]
    counts = torch.bincount(torch.tensor(sample_rows(logits.repeat(draws, 1), slots).tokens), minlength=40)
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    chi_square = ((counts - expected)[common] ** 2 / expected[common]).sum()
    freedom = int(common.sum()) - 1
    assert chi_square < freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_fails_alone(make_slot: MakeSlot, value: float) -> None:
    slots = [make_slot(engine_seed=row, top_p=0.9, logprobs=2, logit_bias={7: 1.0}) for row in range(4)]
    logits = random_logits(4, seed=9)
    healthy = sample_rows(logits.clone(), slots)
    logits[2, 17] = value
    hurt = sample_rows(logits, slots)
    assert hurt.failed == {2: NOT_FINITE}
    others = [0, 1, 3]
    assert [hurt.tokens[row] for row in others] == [healthy.tokens[row] for row in others]
    assert hurt.logprobs == {row: healthy.logprobs[row] for row in others}


def test_a_row_without_any_token_left_fails_alone(make_slot: MakeSlot) -> None:
    stuck = make_slot(allowed_token_ids=(4,), min_tokens=3, stop_ids=(4,))
    samples = sample_rows(random_logits(2, seed=10), [stuck, make_slot(allowed_token_ids=(4,))])
    assert samples.failed == {0: NO_TOKEN_LEFT}
    assert samples.tokens[1] == 4


def test_ids_outside_the_vocabulary_are_ignored(make_slot: MakeSlot) -> None:
    slot = make_slot(
        allowed_token_ids=(3, VOCABULARY + 5), logit_bias={-1: 50.0, VOCABULARY: 50.0}, min_tokens=1,
        stop_ids=(VOCABULARY + 9,), bad_words=((VOCABULARY,),), vocabulary=VOCABULARY,
    )  # fmt: skip
    assert sample_rows(random_logits(1, seed=11), [slot]).tokens == [3]


def test_tiny_temperature_takes_the_best_token(make_slot: MakeSlot) -> None:
    logits = random_logits(3, seed=12)
    best = logits.argmax(-1).tolist()
    assert sample_rows(logits, [make_slot(temperature=5e-324)] * 3).tokens == best


def test_low_precision_logits_are_sampled_in_float32(make_slot: MakeSlot) -> None:
    logits = random_logits(4, seed=13).to(torch.bfloat16)
    slots = [make_slot(engine_seed=row, top_p=0.95) for row in range(4)]
    assert sample_rows(logits.clone(), slots).tokens == sample_rows(logits.float(), slots).tokens


def test_penalties_and_draws_go_on_after_a_preemption(make_slot: MakeSlot) -> None:
    """A slot that grew token by token samples what one that began with the same tokens does."""
    params = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4, "min_tokens": 5}
    grown = make_slot([1, 2, 3], [], engine_seed=3, stop_ids=(9,), **params)
    for step in range(8):
        begun_again = make_slot([1, 2, 3], grown.output.tolist(), engine_seed=3, stop_ids=(9,), **params)
        logits = random_logits(1, seed=20 + step)
        drawn = sample_rows(logits.clone(), [grown]).tokens
        assert sample_rows(logits, [begun_again]).tokens == drawn
        grown.append(drawn[0])


def test_weights_are_powers_of_two_with_forty_bits() -> None:
    """Fixed numbers: every platform must get these very integers, or equal seeds would draw different tokens."""
    logits = torch.tensor([[1.5, 1.5, 1.0, -0.75, -3.3, -20.0, -27.0, -500.0, -math.inf]])
    weights = sample_ops.weigh(logits, torch.tensor([sample_ops.rate(0.9)]))[0]
    exact = torch.exp2((logits[0].double() - 1.5) * torch.tensor(sample_ops.rate(0.9)).double()) * 2.0**40
    assert weights[:2].tolist() == [2**40] * 2
    torch.testing.assert_close(weights.double(), exact, rtol=2e-6, atol=1.0)
    assert weights.tolist() == [1099511627776, 1099511627776, 630848552960, 90253410304, 5308386816, 46, 0, 0, 0]


def test_the_ops_given_are_the_ones_that_run(make_slot: MakeSlot, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = Sampling()
    monkeypatch.setattr(ops.choose, "forward", lambda logits, choices, edits: torch.tensor([7, sampling.NOT_FINITE]))
    samples = sample_rows(random_logits(2, seed=1), [make_slot(), make_slot(logprobs=1)], ops)
    assert samples.tokens[0] == 7
    assert samples.failed == {1: NOT_FINITE}
    assert not samples.logprobs


@pytest.mark.parametrize("field", [*FIELDS, "all"])
def test_processed_log_probabilities_are_those_of_the_draw(make_slot: MakeSlot, field: str) -> None:
    chance = random.Random(field)
    names = [name for name in FIELDS if name != "greedy"] if field == "all" else [field]
    slots = [random_slot(make_slot, chance, names) for _ in range(40)]
    for slot in slots:
        slot.begin.params.logprobs = 3
    logits = random_logits(40, seed=2)
    samples = sample_rows(logits, slots, Sampling(processed=True))
    for row, slot in enumerate(slots):
        x = constrained_logits(logits[row].tolist(), slot)
        hot = slot.begin.params.replace(temperature=1.0) if slot.params.greedy else slot.params
        likely = probabilities(x, SimpleNamespace(params=hot))
        shown = samples.logprobs[row]
        assert shown.ids[0][0] == samples.tokens[row]
        for token, value in zip(shown.ids[0], shown.values[0], strict=True):
            if likely[token] == 0.0:
                assert value < -1e30
            else:
                assert value == pytest.approx(math.log(likely[token]), abs=1e-3)


def test_raw_log_probabilities_are_the_models_own(make_slot: MakeSlot) -> None:
    logits = random_logits(1, seed=3)
    (shown,) = sample_rows(logits.clone(), [make_slot(temperature=3.0, top_k=2, logprobs=0)]).logprobs.values()
    assert shown.values[0][0] == pytest.approx(float(logits[0].log_softmax(-1)[shown.ids[0][0]]), abs=1e-5)

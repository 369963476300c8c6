"""The worker against transformers on tiny models: however work is cut into steps, the tokens are the same."""

import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lsv.offers import AttentionOffer
from lsv.request.params import PoolingParams
from lsv.scheduler.plan import Grown
from lsv_runtime.nn import model as nn_model
from lsv_runtime.nn.step import Step
from lsv_runtime.worker.sampling.sampler import NOT_FINITE

from .conftest import BareCatalog

Checkpoints = Callable[..., Path]
Drive = Callable[..., Any]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(8, 256) for _ in range(length)]


@functools.cache
def reference(model: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")


@torch.inference_mode()
def forward(model: Path, ids: Sequence[int]) -> Any:
    return reference(model)(torch.tensor([list(ids)]), output_hidden_states=True)


@torch.inference_mode()
def greedy(model: Path, prompt: Sequence[int], tokens: int) -> list[int]:
    """Greedy tokens of transformers, without a cache; the best two logits must never be close."""
    ids = list(prompt)
    for _ in range(tokens):
        best = reference(model)(torch.tensor([ids])).logits[0, -1].topk(2)
        assert best.values[0] - best.values[1] > 1e-3, "a near tie proves nothing: change the seed"
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :]


@pytest.mark.parametrize("chunk", [1000, 5, 1])
def test_chunked_prompts_equal_transformers(drive: Drive, checkpoints: Checkpoints, chunk: int) -> None:
    prompt = prompt_of(19)
    driver = drive()
    assert driver.generate(driver.begin(0, prompt), 8, chunk) == greedy(checkpoints("llama"), prompt, 8)


def test_mixed_batches_equal_transformers(drive: Drive, checkpoints: Checkpoints) -> None:
    """Requests enter one after the other, so chunks of prompts share steps with decoding rows."""
    prompts = [prompt_of(length, seed=length) for length in (9, 17, 6)]
    driver = drive()
    done = dict.fromkeys(range(3), 0)
    drawn: dict[int, list[int]] = {slot: [] for slot in range(3)}
    for step in range(14):
        running = range(min(3, step + 1))
        begin = [driver.begin(step, prompts[step])] if step < 3 else []
        rows = []
        for slot in reversed(running):
            length = len(prompts[slot]) + len(drawn[slot])
            count = min(7, length - done[slot])
            rows.append((slot, done[slot], count, done[slot] + count == length))
            done[slot] += count
        result = driver.run(rows, begin)
        for (slot, *_), tokens in zip(rows, result.tokens, strict=True):
            drawn[slot] += tokens
    for slot, prompt in enumerate(prompts):
        assert len(drawn[slot]) >= 8
        assert drawn[slot] == greedy(checkpoints("llama"), prompt, len(drawn[slot]))


def test_shared_prefix_blocks_are_read_not_computed(drive: Drive, checkpoints: Checkpoints) -> None:
    prefix = prompt_of(12)
    prompt = [*prefix, *prompt_of(5, seed=3)]
    driver = drive()
    driver.generate(driver.begin(0, prefix), 1)
    begin = driver.begin(1, prompt)
    result = driver.run([(1, 12, 5, True)], [begin], shared=[Grown(1, 0, tuple(driver.tables[0, 0][:3]))])
    assert list(result.tokens[0]) == greedy(checkpoints("llama"), prompt, 1)


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 1.1, "top_p": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.5}],
)
def test_a_preempted_request_goes_on_as_if_nothing_had_happened(drive: Drive, params: dict[str, Any]) -> None:
    prompt = prompt_of(10)
    driver = drive()
    expected = driver.generate(driver.begin(0, prompt, seed=9, min_tokens=12, **params), 12)
    driver.run([], end=[0])
    first = driver.generate(driver.begin(1, prompt, seed=9, min_tokens=12, **params), 5)
    driver.run([], end=[1])
    again = driver.begin(3, [*prompt, *first], len(prompt), seed=9, min_tokens=12, **params)
    assert first + driver.generate(again, 7, chunk=4) == expected


def test_a_slot_may_end_and_begin_in_one_plan(drive: Drive, checkpoints: Checkpoints) -> None:
    driver = drive()
    driver.generate(driver.begin(0, prompt_of(20, seed=1)), 2)
    prompt = prompt_of(6, seed=2)
    result = driver.run([(0, 0, 6, True)], [driver.begin(0, prompt)], end=[0])
    assert list(result.tokens[0]) == greedy(checkpoints("llama"), prompt, 1)


@pytest.mark.row("F-376")
def test_a_sliding_window_forgets_what_lies_behind_it(drive: Drive, checkpoints: Checkpoints) -> None:
    """The blocks behind the window are the null page: whoever reads them gets another answer."""
    model = checkpoints("mistral", sliding_window=10)
    prompt = prompt_of(40)
    expected = greedy(model, prompt, 4)
    driver = drive("mistral", sliding_window=10)
    assert [group.window for group in driver.groups] == [10]
    assert driver.generate(driver.begin(0, prompt), 4, chunk=16) == expected
    kept = driver.tables[0, 0][6:9]
    result = driver.run([(1, 36, 4, True)], [driver.begin(1, prompt)], shared=[Grown(1, 0, (0, 0, 0, 0, 0, 0, *kept))])
    assert list(result.tokens[0]) == expected[:1]


@pytest.mark.row("F-376")
def test_full_and_windowed_layers_have_their_own_block_tables(drive: Drive, checkpoints: Checkpoints) -> None:
    shape = {
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "sliding_window": 8,
        "use_sliding_window": True,
        "max_window_layers": 1,
    }
    prompt = prompt_of(30)
    driver = drive("qwen2", **shape)
    assert sorted(group.kind for group in driver.groups) == ["full", "full", "window"]
    expected = greedy(checkpoints("qwen2", **shape), prompt, 4)
    assert driver.generate(driver.begin(0, prompt), 4, chunk=7) == expected


@pytest.mark.row("F-057")
@pytest.mark.parametrize("chunk", [1000, 6])
def test_prompt_logprobs_equal_transformers(drive: Drive, checkpoints: Checkpoints, chunk: int) -> None:
    prompt = prompt_of(20)
    expected = forward(checkpoints("llama"), prompt).logits[0].log_softmax(-1)
    driver = drive()
    begin, found = [driver.begin(0, prompt, prompt_logprobs=2)], []
    for start in range(0, 20, chunk):
        count = min(chunk, 20 - start)
        result = driver.run([(0, start, count, start + count == 20)], begin)
        begin = []
        if 0 in result.prompt_logprobs:
            one = result.prompt_logprobs[0]
            found += list(zip(one.ids, one.values, one.ranks, strict=True))
    assert len(found) == 19
    for position, (ids, values, ranks) in enumerate(found):
        row = expected[position]
        assert ids == (prompt[position + 1], *row.topk(2).indices.tolist())
        torch.testing.assert_close(torch.tensor(values), row[list(ids)], atol=1e-4, rtol=1e-4)
        assert ranks == (int((row > row[ids[0]]).sum()) + 1, 1, 2)


def test_prompt_logprobs_stop_where_the_output_begins(drive: Drive) -> None:
    """After a preemption the ids hold output too, which is no part of the prompt."""
    driver = drive()
    result = driver.run([(0, 0, 8, True)], [driver.begin(0, prompt_of(8), 5, prompt_logprobs=0)])
    assert len(result.prompt_logprobs[0].ids) == 4
    result = driver.run([(0, 8, 1, True)])
    assert not result.prompt_logprobs


@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_the_last_hidden_state(drive: Drive, checkpoints: Checkpoints, normalize: bool) -> None:
    prompt = prompt_of(9)
    driver = drive()
    begin = driver.begin(0, prompt, pooling=PoolingParams(normalize=normalize))
    result = driver.run([(0, 0, 9, True), (1, 0, 4, True)], [begin, driver.begin(1, prompt_of(4))])
    expected = forward(checkpoints("llama"), prompt).hidden_states[-1][0, -1]
    if normalize:
        expected = expected / expected.norm()
    found = torch.frombuffer(bytearray(result.vectors[0]), dtype=torch.float32)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert result.tokens[0] == ()
    assert len(result.tokens[1]) == 1


def test_an_empty_plan_is_legal(drive: Drive) -> None:
    driver = drive()
    result = driver.run([], [driver.begin(0, prompt_of(4))])
    assert (result.tokens, result.kept, result.failed) == ((), (), {})
    assert len(driver.run([(0, 0, 4, True)]).tokens[0]) == 1


def test_a_token_outside_the_vocabulary_fails_its_row_alone(drive: Drive, checkpoints: Checkpoints) -> None:
    good = prompt_of(6)
    driver = drive()
    begin = [driver.begin(0, [1, 2, 320]), driver.begin(1, good)]
    result = driver.run([(0, 0, 3, True), (1, 0, 6, True)], begin)
    assert "token 320 is not in the vocabulary" in result.failed[0]
    assert result.tokens == ((), tuple(greedy(checkpoints("llama"), good, 1)))


def test_numbers_that_break_name_the_kernels_that_came_from_elsewhere(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BareCatalog, "is_own", lambda self, offer: not isinstance(offer, AttentionOffer))
    driver = drive()
    with torch.inference_mode():
        driver.worker.live.runner.model.embed.weight[5] = torch.nan
    result = driver.run([(0, 0, 3, True)], [driver.begin(0, [9, 5, 9])])
    assert result.failed == {0: f"{NOT_FINITE}; kernels that do not come with lsv: attention_backend by plugin bare"}
    assert "--reference-ops" in NOT_FINITE
    assert result.distrusted == (0,)


def test_a_row_whose_numbers_break_fails_alone(drive: Drive, checkpoints: Checkpoints) -> None:
    """One token's embedding is NaN."""
    driver = drive()
    with torch.inference_mode():
        driver.worker.live.runner.model.embed.weight[5] = torch.nan
    good = prompt_of(6)
    begin = [
        driver.begin(0, [9, 5, 9]),
        driver.begin(1, good),
        driver.begin(2, [9, 5, 9], pooling=PoolingParams()),
        driver.begin(3, [9, 5, 9, 9], prompt_logprobs=1),
    ]
    result = driver.run([(0, 0, 3, True), (1, 0, 6, True), (2, 0, 3, True), (3, 0, 3, False)], begin)
    assert result.failed == {0: NOT_FINITE, 2: NOT_FINITE, 3: NOT_FINITE}
    assert sorted(result.distrusted) == [0, 2, 3]
    assert result.tokens == ((), tuple(greedy(checkpoints("llama"), good, 1)), (), ())
    planned_already = driver.run([(0, 3, 1, True), (1, 6, 1, True)])
    assert planned_already.tokens[1] == tuple(greedy(checkpoints("llama"), good, 2)[1:])


def test_a_chunk_that_nothing_is_sampled_from_fails_by_its_states(drive: Drive, checkpoints: Checkpoints) -> None:
    """NaN in the middle of a prompt, next to rows that go on."""
    driver = drive()
    with torch.inference_mode():
        driver.worker.live.runner.model.embed.weight[5] = torch.nan
    good = prompt_of(6)
    begin = [
        driver.begin(0, [9, 5, 9, 9]),
        driver.begin(1, good),
        driver.begin(2, [9, 5, 9, 9], pooling=PoolingParams()),
        driver.begin(3, [9, 9, 9, 9]),
    ]
    result = driver.run([(0, 0, 3, False), (1, 0, 6, True), (2, 0, 3, False), (3, 0, 3, False)], begin)
    assert result.failed == {0: NOT_FINITE, 2: NOT_FINITE}
    assert result.distrusted == (0, 2)
    assert result.tokens == ((), tuple(greedy(checkpoints("llama"), good, 1)), (), ())


def test_a_prompt_that_ends_is_checked_in_all_its_tokens(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """With windowed layers, the sampled token does not see all tokens."""
    run = nn_model.run

    def broken(model: nn_model.Model, step: Step) -> torch.Tensor:
        hidden = run(model, step)
        step.sound[1] = False
        return hidden

    driver = drive()
    monkeypatch.setattr(nn_model, "run", broken)
    result = driver.run([(0, 0, 3, True), (1, 0, 3, True)], [driver.begin(slot, [9, 9, 9]) for slot in (0, 1)])
    assert result.failed == {0: NOT_FINITE}
    assert len(result.tokens[1]) == 1


def test_all_rows_of_a_step_that_breaks_are_distrusted(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drive()
    monkeypatch.setattr(driver.worker.live.runner, "run", lambda *_: 1 / 0)
    result = driver.run([(0, 0, 3, True), (1, 0, 2, False)], [driver.begin(0, [9, 9, 9]), driver.begin(1, [9, 9, 9])])
    assert result.broken
    assert result.distrusted == (0, 1)

"""A request group: one record, and the sequences it is made into."""

from __future__ import annotations

from lsv.request.group import RequestGroup, derive_seed
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec

PROMPTS = (Prompt(ids=(1, 2)), Prompt(ids=(3,)), Prompt(ids=(4, 5, 6)))


def group(*, seed: int = 0, id: int = 10, **params: object) -> RequestGroup:
    spec = RequestSpec(prompts=PROMPTS, sampling=SamplingParams(**params), request_id="r")
    return RequestGroup(id, spec, stop_ids=(7,), bad_words=((8, 9),), seed=seed, arrival=3.0)


def test_sequences_are_numbered_prompt_by_prompt():
    asked = group(n=2, temperature=1.0)
    made = [asked.make(index) for index in range(asked.size)]
    assert [request.prompt for request in made] == [prompt.ids for prompt in PROMPTS for _ in range(2)]
    assert [request.id for request in made] == list(range(10, 16))
    assert {request.group for request in made} == {10}
    assert {(request.stop_ids, request.bad_words, request.arrival) for request in made} == {((7,), ((8, 9),), 3.0)}


def test_candidates_share_everything_but_their_seeds():
    asked = group(n=3, seed=5)
    seeds = [asked.make(index).seed for index in range(asked.size)]
    assert len(set(seeds)) == 9
    seeded = RequestGroup(99, RequestSpec(prompts=PROMPTS, sampling=SamplingParams(n=3, seed=5), request_id="r"))
    assert [seeded.make(index).seed for index in range(6)] == [derive_seed(5, number) for number in (0, 1, 2)] * 2
    assert seeded.make(0).seed == 5


def test_a_prompt_is_scored_for_its_first_candidate_alone():
    asked = group(n=2, prompt_logprobs=1, logprobs=3, temperature=1.0)
    scored = [asked.make(index).sampling.prompt_logprobs for index in range(asked.size)]
    assert scored == [1, None] * 3
    assert asked.make(1).sampling.logprobs == 3


def test_a_pooling_request_has_one_sequence_a_prompt():
    spec = RequestSpec(prompts=PROMPTS, pooling=PoolingParams(), request_id="r", timeout=2.0)
    asked = RequestGroup(0, spec, arrival=1.0)
    assert (asked.size, asked.deadline) == (3, 3.0)
    assert asked.make(2).prompt == (4, 5, 6)

"""Admission: what every request, online and offline, is checked for, and how it is completed."""

from __future__ import annotations

import msgspec
import pytest

from lsv.engine import admission
from lsv.engine.admission import Admission, check_media_size, make_submit
from lsv.request.media import Array, Media
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv_base.errors import BadRequest, ContextTooLong
from lsv_testing.fakes.requests import make_spec
from lsv_testing.fakes.text import letters

ADMISSION = Admission(max_model_len=10, vocab_size=97, max_logprobs=5)
PICTURE = Media(b"a" * 32, "image", 0, 1, {"pixels": Array("uint8", (8,), bytes(8))})


def admit(ids: list[int], params: SamplingParams | PoolingParams | None = None, **how: object) -> RequestSpec:
    return ADMISSION.admit(make_spec(ids, params or SamplingParams()), **how)


def test_an_answer_may_fill_the_context():
    admitted = admit([1] * 4, SamplingParams(max_tokens=None, min_tokens=8))
    assert (admitted.sampling.max_tokens, admitted.sampling.min_tokens) == (6, 6)
    assert len(admit([1] * 9).prompt.ids) == 9
    assert admit([1] * 9, SamplingParams(max_tokens=16)).sampling.max_tokens == 16, "it ends with the context"


def test_a_default_length_shrinks_to_what_is_left():
    unset = SamplingParams(max_tokens=None)
    assert admit([1] * 4, unset, default_max_tokens=5).sampling.max_tokens == 5
    assert admit([1] * 8, unset, default_max_tokens=5).sampling.max_tokens == 2
    with pytest.raises(BadRequest) as refused:
        admit([1] * 8, unset.replace(min_tokens=3), default_max_tokens=5, strict=True)
    assert refused.value.param == "min_tokens"


def test_what_was_asked_for_must_fit_where_admission_is_strict():
    assert admit([1] * 4, SamplingParams(max_tokens=6), strict=True).sampling.max_tokens == 6
    with pytest.raises(ContextTooLong) as refused:
        admit([1] * 4, SamplingParams(max_tokens=7), field="messages", strict=True)
    assert refused.value.param == "messages"
    assert refused.value.message == (
        "This model's maximum context length is 10 tokens. However, you requested 11 tokens (4 in the prompt, 7 for "
        "the answer). Shorten the prompt, set truncate_prompt_tokens, or ask for at most 6."
    )


def test_prompts_that_leave_no_room():
    with pytest.raises(ContextTooLong, match=r"10 tokens\. However, you requested 11 tokens .* set truncate_prompt"):
        admit([1] * 10)
    assert len(admit([1] * 10, PoolingParams()).prompt.ids) == 10, "a vector needs no room for an answer"
    with pytest.raises(ContextTooLong):
        admit([1] * 11, PoolingParams())


@pytest.mark.parametrize("token", [-1, 97, 1 << 64, pytest.param(10**5000, id="huge"), 1.5, "a", None])
def test_token_ids_of_another_model(token: object):
    with pytest.raises(BadRequest, match=r"input: .* is not a token id of this model") as refused:
        admit([1, token], field="input")
    assert refused.value.param == "input"
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"allowed_token_ids": (3, -1)}, "allowed_token_ids"),
        ({"logit_bias": {500: 1.0}}, "logit_bias"),
        ({"logprobs": 6}, "logprobs"),
        ({"prompt_logprobs": 6}, "prompt_logprobs"),
    ],
)
def test_parameters_of_another_model(params: dict[str, object], name: str):
    with pytest.raises(BadRequest) as refused:
        admit([1], SamplingParams(**params), field="messages")
    assert refused.value.param == name


def test_stop_tokens_of_another_model_end_nothing(caplog: pytest.LogCaptureFixture):
    admission = msgspec.structs.replace(ADMISSION, model="told once")
    with caplog.at_level("WARNING", "lsv"):
        spec = make_spec([1], SamplingParams(stop_token_ids=[97, 5, -1, 1 << 70]))
        admitted = [admission.admit(spec).sampling.stop_token_ids for _ in range(2)]
    assert admitted == [(5,), (5,)]
    (told,) = [record.getMessage() for record in caplog.records]
    assert "ignored 97, which is outside this model's vocabulary (0 to 96) and can't end an answer" in told


def test_each_id_counts_once():
    admitted = admit([1], SamplingParams(allowed_token_ids=[5, 6, 5], stop_token_ids=[7, 7])).sampling
    assert (admitted.allowed_token_ids, admitted.stop_token_ids) == ((5, 6), (7,))
    assert ADMISSION.admit(make_spec([1], admitted)).sampling is admitted, "and is not copied again"


@pytest.mark.parametrize("name", ["allowed_token_ids", "stop_token_ids"])
def test_more_ids_than_there_are_tokens(name: str):
    assert admit([1], SamplingParams(**{name: range(97)}))
    with pytest.raises(BadRequest, match="at most 97 token ids, as many as this model has, got 98") as refused:
        admit([1], SamplingParams(**{name: [5] * 98}))
    assert refused.value.param == name


def test_a_text_is_refused_by_its_length_alone(monkeypatch: pytest.MonkeyPatch):
    tokenizer = letters(97)
    assert tokenizer.longest == len("<end>")
    encoded, encode = [], tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text, **how: (encoded.append(text), encode(text, **how))[1])
    with pytest.raises(ContextTooLong, match="has 51 characters, and a token has at most 5"):
        ADMISSION.encode("a" * 51, tokenizer, special=True, field="prompt")
    assert encoded == []
    with pytest.raises(ContextTooLong, match="has 11 tokens"):
        ADMISSION.encode("a" * 11, tokenizer, special=True, field="prompt")
    assert ADMISSION.encode("a" * 10, tokenizer, special=True, field="prompt") == [32] * 10


def test_a_text_is_refused_by_its_beginning(monkeypatch: pytest.MonkeyPatch):
    tokenizer = letters(97)
    admission = Admission(max_model_len=100, vocab_size=97, max_logprobs=5)
    monkeypatch.setattr(tokenizer, "longest", 1 << 20)
    encoded, encode = [], tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text, **how: (encoded.append(len(text)), encode(text, **how))[1])
    with pytest.raises(ContextTooLong, match="more than 100 tokens"):
        admission.encode("a" * 100_000, tokenizer, special=True, field="prompt")
    assert encoded == [800]
    assert admission.encode(" " * 5000, tokenizer, special=True, field="prompt") == []  # it knows no spaces


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 1},
        {"allowed_token_ids": [5, 6], "stop_token_ids": [5], "bad_words": ["G"], "min_tokens": 1},
        {"allowed_token_ids": [96], "min_tokens": 2},  # the end of an answer
        {"stop_token_ids": range(97), "min_tokens": 1},
    ],
)
def test_parameters_that_leave_no_token(params: dict[str, object]):
    tokenizer = letters(97)
    with pytest.raises(BadRequest, match="no token may be drawn"):
        make_submit(0, admit([1], SamplingParams(max_tokens=3, **params)), tokenizer)
    params["min_tokens"] = 0
    params["bad_words"] = []
    assert make_submit(0, admit([1], SamplingParams(max_tokens=3, **params)), tokenizer)


def test_bad_words_are_encoded_once_for_all_prompts(monkeypatch: pytest.MonkeyPatch):
    tokenizer = letters(97)
    encoded, encode = [], tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text, **how: (encoded.append(text), encode(text, **how))[1])
    params = SamplingParams(bad_words=["ab", "c"])
    for prompt in range(10):
        make_submit(prompt, admit([prompt], params), tokenizer)
    assert encoded == ["ab", " ab", "c", " c"]


def test_bad_words_of_too_many_tokens():
    with pytest.raises(BadRequest, match="at most 2048 tokens together") as refused:
        make_submit(0, admit([1], SamplingParams(bad_words=["a" * 2000, "b" * 49])), letters(97))
    assert refused.value.param == "bad_words"


def test_any_number_of_logprobs():
    admission = Admission(max_model_len=10, vocab_size=97, max_logprobs=-1)
    assert admission.admit(make_spec([1], SamplingParams(logprobs=90))).sampling.logprobs == 90


def test_candidates_are_ranked_by_logprobs_whether_asked_for_or_not():
    assert admit([1], SamplingParams(n=1, best_of=2)).sampling.logprobs == 0
    assert admit([1], SamplingParams(n=1, best_of=2, logprobs=3)).sampling.logprobs == 3
    assert admit([1], SamplingParams(n=2)).sampling.logprobs is None


@pytest.mark.row("F-062")
@pytest.mark.parametrize(
    ("kind", "asked", "kept"),
    [
        (SamplingParams, {}, (17, 18, 19)),
        (SamplingParams, {"truncation_side": "right"}, (0, 1, 2)),
        (PoolingParams, {}, (0, 1, 2)),
        (PoolingParams, {"truncation_side": "left"}, (17, 18, 19)),
    ],
)
def test_generators_keep_the_end_of_a_prompt_and_poolers_its_beginning(kind: type, asked: dict, kept: tuple):
    spec = RequestSpec(
        prompts=(Prompt(ids=tuple(range(20)), text="long"),), request_id="r",
        **{"sampling" if kind is SamplingParams else "pooling": kind(truncate_prompt_tokens=3, **asked)},
    )  # fmt: skip
    admitted = ADMISSION.admit(spec)
    assert admitted.prompt == Prompt(ids=kept), "the text no longer is that of the tokens"
    assert ADMISSION.admit(admitted) == admitted
    with pytest.raises(BadRequest, match="must be at least 1"):
        kind(truncate_prompt_tokens=0)


def test_media_would_lose_their_places():
    spec = make_spec([1, 2, 3], SamplingParams(truncate_prompt_tokens=2), media=(PICTURE,))
    with pytest.raises(BadRequest, match="would cut a prompt of 3 tokens with media") as refused:
        ADMISSION.admit(spec)
    assert refused.value.param == "truncate_prompt_tokens"
    assert ADMISSION.admit(make_spec([1, 2, 3], SamplingParams(truncate_prompt_tokens=3), media=(PICTURE,)))


def test_an_empty_prompt():
    with pytest.raises(BadRequest, match="messages must hold at least one token"):
        admit([], field="messages")


def test_media_travel_once_for_all_candidates(monkeypatch):
    spec = make_spec([1], SamplingParams(n=3), media=(PICTURE, PICTURE))
    monkeypatch.setattr(admission, "MOST_MEDIA", 16)
    check_media_size(spec.prompts)
    with pytest.raises(BadRequest, match="the media of this request are"):
        check_media_size([*spec.prompts, *spec.prompts])

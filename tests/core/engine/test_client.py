"""What clients share: streams, candidates, merging, admission; and the inline client stepped by hand."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import tokenizers
from tokenizers import decoders, models

from lsv import hookimpl
from lsv.engine.admission import encode_bad_words, make_submit
from lsv.engine.engine import Engine
from lsv.engine.mailbox import Mailbox, merge
from lsv.engine.messages import Start, Update
from lsv.engine.stream import Candidate, OutputStream
from lsv.offers import LogitsProcessorOffer
from lsv.plugins import Plugins
from lsv.request.outputs import GAP_BOUNDS, Gaps, RequestRecord, Timings
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.request import FinishReason
from lsv.scheduler.plan import Logprobs
from lsv.scheduler.policy import Fcfs
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import BadRequest, EngineDied, Overloaded, RequestFailed
from lsv_base.processes import wire
from lsv_base.processes.wire import FrameReader, encode_frame
from lsv_offline.inline_client import InlineClient
from lsv_testing.fakes.clock import FakeClock
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config
from lsv_testing.fakes.requests import make_spec
from lsv_testing.fakes.text import letters
from lsv_testing.plugins import plugins_of

TOKENIZER = letters(97)


def stream(params: SamplingParams, prompt: tuple[int, ...] = (1, 2)) -> OutputStream:
    spec = make_spec(prompt, params)
    return OutputStream(spec, make_submit(0, spec, TOKENIZER), model="model", tokenizer=TOKENIZER, now=10.0)


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text))


def read(params: SamplingParams, *updates: Update) -> tuple[str, tuple[int, ...], FinishReason | None, object]:
    """Text, ids and end of candidate 0 after some updates."""
    under_way, chunks = stream(params), []
    for update in updates:
        chunks.append(under_way.take(update, 11.0)[0])
    known = [chunk for chunk in chunks if chunk is not None]
    last = known[-1]
    return "".join(c.text for c in known), sum((c.ids for c in known), ()), last.finish, last.stop


END = FinishReason.LENGTH
STOP = FinishReason.STOP
ANSWER = "abcXYZdef"


@pytest.mark.row("F-050", "F-052")
@pytest.mark.parametrize("size", range(1, 10))
def test_a_stop_string_however_the_tokens_come(size: int):
    pieces = [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]
    updates = [Update(id=0, tokens=ids(piece)) for piece in pieces]
    updates[-1] = Update(id=0, tokens=ids(pieces[-1]), finish=END)
    expected = ("abc", ids("abcXYZ"), STOP, "XYZ")
    assert read(SamplingParams(stop=("nope", "XYZ")), *updates) == expected
    included = read(SamplingParams(stop=("XYZ",), include_stop_str_in_output=True), *updates)
    assert included == ("abcXYZ", *expected[1:])


def test_the_engine_hears_of_a_stop_string_unless_it_has_ended_the_answer_itself():
    under_way = stream(SamplingParams(stop=("b",)))
    chunk, finish = under_way.take(Update(id=0, tokens=ids("abc")), 11.0)
    assert (chunk.text, chunk.ids, finish.id, finish.keep) == ("a", ids("ab"), 0, 2)
    assert under_way.take(Update(id=0, tokens=ids("d")), 11.0) == (None, None)
    ended = stream(SamplingParams(stop=("b",)))
    assert ended.take(Update(id=0, tokens=ids("ab"), finish=END), 11.0)[1] is None
    assert ended.finished


def test_what_was_held_back_comes_at_the_end():
    ended = Update(id=0, tokens=ids("abc"), finish=END)
    assert read(SamplingParams(stop=("bcd",)), ended) == ("abc", ids("abc"), END, None)


@pytest.mark.row("F-055")
def test_min_tokens_come_before_stop_strings():
    text, kept, finish, stop = read(SamplingParams(stop=("b",), min_tokens=2), Update(id=0, tokens=ids("abcb")))
    assert (text, kept, finish, stop) == ("abc", ids("abcb"), STOP, "b")


@pytest.mark.parametrize(("least", "expected"), [(0, "a"), (1, "a"), (2, "a"), (3, "a"), (4, "abcde"), (5, "abcde")])
def test_a_stop_string_may_begin_within_min_tokens(least: int, expected: str):
    params = SamplingParams(stop=("bcd",), min_tokens=least)
    whole = read(params, Update(id=0, tokens=ids("abcde"), finish=END))
    assert whole[0] == expected
    assert whole[3] == ("bcd" if expected == "a" else None)
    single = [Update(id=0, tokens=ids(letter), finish=END if letter == "e" else None) for letter in "abcde"]
    assert read(params, *single) == whole


@pytest.mark.row("F-051")
def test_how_stop_tokens_show():
    eos = TOKENIZER.eos_ids[0]
    ended = Update(id=0, tokens=(*ids("ab"), eos), finish=STOP)
    assert read(SamplingParams(), ended) == ("ab", (*ids("ab"), eos), STOP, None)
    assert read(SamplingParams(skip_special_tokens=False), ended)[0] == "ab"
    shown = SamplingParams(skip_special_tokens=False, include_stop_str_in_output=True)
    assert read(shown, ended)[0] == "ab<end>"
    asked = Update(id=0, tokens=ids("abc"), finish=STOP, stop=ids("c")[0])
    assert read(SamplingParams(stop_token_ids=ids("c")), asked) == ("ab", ids("abc"), STOP, ids("c")[0])
    shown = SamplingParams(stop_token_ids=ids("c"), include_stop_str_in_output=True)
    assert read(shown, asked) == ("abc", ids("abc"), STOP, ids("c")[0])


@pytest.mark.row("F-059", "F-060")
def test_spaces_between_special_tokens():
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[A]", "[B]"])
    update = Update(id=0, tokens=(1, 2), finish=END)
    for given, text in (
        ({}, ""),
        ({"skip_special_tokens": False}, "[A] [B]"),
        ({"skip_special_tokens": False, "spaces_between_special_tokens": False}, "[A][B]"),
        ({"spaces_between_special_tokens": False}, ""),
    ):
        candidate = Candidate((), SamplingParams(**given), Tokenizer(backend), None)
        assert candidate.take(update)[0] == text


@pytest.mark.row("F-058")
def test_no_text_where_none_is_wanted():
    assert read(SamplingParams(detokenize=False), Update(id=0, tokens=(1, 2), finish=END)) == ("", (1, 2), END, None)


def test_logprobs_are_cut_with_the_answer():
    scores = Logprobs(tuple((i,) for i in ids("abc")), ((-1.0,),) * 3, ((1,),) * 3)
    under_way = stream(SamplingParams(stop=("b",), logprobs=0))
    chunk, _ = under_way.take(Update(id=0, tokens=ids("abc"), logprobs=scores), 11.0)
    assert [position[0].text for position in chunk.logprobs] == ["a", "b"]


def test_prompt_logprobs_come_in_parts_and_leave_together():
    def part(*tokens: int) -> Logprobs:
        return Logprobs(tuple((t,) for t in tokens), ((-1.0,),) * len(tokens), ((1,),) * len(tokens))

    under_way = stream(SamplingParams(prompt_logprobs=0))
    assert under_way.take(Update(id=0, prompt_logprobs=part(5, 6)), 11.0)[0] is None
    chunk, _ = under_way.take(Update(id=0, tokens=(1,), prompt_logprobs=part(7), start=Start(cached=4)), 11.0)
    assert [position and position[0].id for position in chunk.prompt_logprobs] == [None, 5, 6, 7]
    assert chunk.cached == 4
    assert under_way.take(Update(id=0, tokens=(1,)), 11.0)[0].prompt_logprobs is None


@pytest.mark.row("F-757")
def test_tokens_that_come_together_share_their_gap():
    gaps = Gaps()
    gaps.add(0.3, 3)
    assert (sum(gaps.counts), gaps.total) == (3, 0.3)
    assert gaps.counts[GAP_BOUNDS.index(0.1)] == 3


def gaps_of(*times: float) -> Gaps:
    gaps = Gaps()
    for seconds in times:
        gaps.add(seconds)
    return gaps


@pytest.mark.row("F-757")
def test_times_between_tokens_are_counted_as_they_come():
    clock, under_way = 16.0, stream(SamplingParams())
    under_way.take(Update(id=0, tokens=(1,)), clock)
    for seconds in (0.0078125, 0.5, 0.53125, 1.0, 4.0):
        clock += seconds
        under_way.take(Update(id=0, tokens=(1,)), clock)
    found = under_way.records(clock)[0].itl
    assert dict(zip((*GAP_BOUNDS, "longer"), found.counts, strict=True)) == {
        **dict.fromkeys(GAP_BOUNDS, 0), 0.01: 1, 0.5: 1, 0.75: 1, 1.0: 1, "longer": 1
    }  # fmt: skip
    assert found.total == 6.0390625
    found.merge(gaps_of(0.6))
    assert (found.counts[GAP_BOUNDS.index(0.75)], found.total) == (2, 6.6390625)


def test_the_record_of_a_request():
    under_way = stream(SamplingParams(n=2, max_tokens=9))
    under_way.take(Update(id=0, tokens=(1,), start=Start(cached=3, queued=0.5, prefill=0.25)), 11.0)
    under_way.take(Update(id=0, index=1, tokens=(1, 2)), 12.0)
    under_way.take(Update(id=0, tokens=(1, 2)), 14.0)
    record = under_way.records(15.0)[0]
    assert record == RequestRecord(
        request_id="r", model="model", prompt_tokens=2, tokens=5, cached_tokens=3, finish=FinishReason.ABORT, n=2,
        best_of=2, max_tokens=9, queued=0.5, prefill=0.25, ttft=1.0, e2e=5.0, itl=gaps_of(1.5, 1.5), longest=3,
        fresh=Timings(1.0, gaps_of(1.5, 1.5)),
    )  # fmt: skip
    under_way.take(Update(id=0, finish=END), 15.0)
    assert not under_way.finished
    under_way.take(Update(id=0, index=1, finish=END), 15.0)
    assert under_way.finished
    assert under_way.records(15.0)[0].finish is END


def test_timings_are_told_once_while_a_request_runs():
    under_way = stream(SamplingParams(max_tokens=9))
    assert list(under_way.take_timings()) == []
    under_way.take(Update(id=0, tokens=(1,)), 11.0)
    assert list(under_way.take_timings()) == [Timings(1.0, gaps_of())]
    assert list(under_way.take_timings()) == []
    for now in (12.0, 14.0):
        under_way.take(Update(id=0, tokens=(1,)), now)
    assert list(under_way.take_timings()) == [Timings(None, gaps_of(1.0, 2.0))]
    under_way.take(Update(id=0, tokens=(1,), finish=END), 15.0)
    record = under_way.records(15.0)[0]
    assert record.fresh == Timings(None, gaps_of(1.0))
    assert (record.ttft, record.itl) == (1.0, gaps_of(1.0, 2.0, 1.0))


def test_merged_updates_say_what_the_single_ones_said():
    rng = random.Random(0)
    singles = [Update(id=0, tokens=(rng.randrange(90),)) for _ in range(20)]
    singles[0] = Update(id=0, tokens=(4,), start=Start(cached=1, queued=2.0, prefill=3.0))
    singles.append(Update(id=0, finish=STOP, stop=7))
    mailbox = Mailbox()
    mailbox.put(singles[:10])
    mailbox.put([Update(id=1, tokens=(9,))])
    mailbox.put(singles[10:])
    merged, other = mailbox.take()
    assert merged == merge(singles)
    assert merged.tokens == tuple(token for update in singles for token in update.tokens)
    assert (merged.start, merged.finish, merged.stop) == (singles[0].start, STOP, 7)
    assert other.id == 1
    assert not mailbox
    mailbox.put(singles)
    mailbox.discard([0])
    assert mailbox.take() == ()


def test_frames_survive_any_cut():
    updates = [Update(id=number, tokens=tuple(range(number))) for number in range(20)]
    data = b"".join(map(encode_frame, updates))
    for size in (1, 3, 7, 64, len(data)):
        reader: FrameReader[Update] = FrameReader(Update)
        assert [u for at in range(0, len(data), size) for u in reader.feed(data[at : at + size])] == updates
        assert not reader.is_inside
    assert list(reader.feed(data[:7])) == []
    assert reader.is_inside
    with pytest.raises(ValueError, match="over the limit"):
        list(FrameReader(Update).feed(b"\xff" * 8))
    with pytest.raises(ValueError, match="is over the limit of 10"):
        list(FrameReader(Update, 10).feed(encode_frame(updates[-1])))


def test_what_no_reader_takes_is_not_sent(monkeypatch: pytest.MonkeyPatch):
    update = Update(id=1, vector=bytes(1000))
    monkeypatch.setattr(wire, "LONGEST", len(encode_frame(update)) - 5)
    with pytest.raises(ValueError, match=r"a message Update of \d+ bytes is over the limit"):
        encode_frame(update)


@pytest.mark.row("F-051", "F-053")
def test_ids_that_end_an_answer():
    eos = TOKENIZER.eos_ids[0]
    params = SamplingParams(stop_token_ids=(3, eos))
    assert make_submit(0, make_spec((1,), params), TOKENIZER).stop_ids == (eos, 3)
    params = SamplingParams(stop_token_ids=(3,), ignore_eos=True)
    assert make_submit(0, make_spec((1,), params), TOKENIZER).stop_ids == (3,)


def test_bad_words_with_and_without_a_space():
    assert encode_bad_words(("ab", "ab"), TOKENIZER)[0] == ids("ab")


def test_logits_processors_are_asked_for_by_known_names():
    @hookimpl
    def lsv_logits_processors() -> list[LogitsProcessorOffer]:
        some = "lsv.request.params:PoolingParams"
        return [
            LogitsProcessorOffer("one", "nowhere:One"),
            LogitsProcessorOffer("two", "nowhere:Two", arguments=some),
        ]

    client = inline(plugins_of(some=SimpleNamespace(api=2, lsv_logits_processors=lsv_logits_processors)))
    for asked, message in (
        ({"tow": 1}, r"there is no logits processor 'tow'; did you mean two\? \(known: one, two\)"),
        ({"two": {"normalize": 1}}, r"two: Expected `bool \| null`, got `int` - at `\$.normalize`"),
    ):
        with pytest.raises(BadRequest, match=message) as refused:
            client.add(make_spec((1, 2), SamplingParams(logits_processors=asked), request_id="a"))
        assert refused.value.param == "logits_processors"
    params = SamplingParams(logits_processors={"one": object, "two": PoolingParams()})
    client.add(make_spec((1, 2), params, request_id="a"))


@pytest.mark.row("F-776")
def test_plugins_hear_of_every_request():
    heard: list[RequestRecord] = []

    @hookimpl
    def lsv_request_finished(record: RequestRecord) -> None:
        heard.append(record)

    watcher = SimpleNamespace(api=2, lsv_request_finished=lsv_request_finished)
    client = inline(plugins_of(watcher=watcher))
    client.add(make_spec((1, 2), SamplingParams(max_tokens=2, ignore_eos=True), request_id="a"))
    client.add(make_spec((1, 2), PoolingParams(), request_id="v"))
    run(client)
    assert [(record.request_id, record.tokens) for record in heard] == [("v", 0), ("a", 2)]


# The inline client


def inline(plugins: Plugins | None = None, **changes: object) -> InlineClient:
    clock = FakeClock()
    engine: Engine[None] = Engine(engine_config(**changes), FakeExecutor(), Fcfs(), parts=core_parts, now=clock)
    fit = engine.start(lambda *_: None)
    return InlineClient(engine, TOKENIZER, fit, plugins=plugins, now=clock)


def run(client: InlineClient) -> dict[str, str]:
    texts: dict[str, str] = {}
    while client.unfinished:
        for news in client.step():
            texts[news.request_id] = texts.get(news.request_id, "") + (news.chunk.text if news.chunk else "")
    return texts


def test_requests_come_in_while_others_run():
    client, waiting, texts = inline(), ["a", "b", "c"], {}
    while waiting or client.unfinished:
        if waiting:
            name = waiting.pop()
            params = SamplingParams(temperature=0.0, max_tokens=3 + len(waiting), ignore_eos=True)
            client.add(make_spec(ids(name), params, request_id=name))
        for news in client.step():
            texts[news.request_id] = texts.get(news.request_id, "") + news.chunk.text
    assert {name: len(text) for name, text in texts.items()} == {"a": 3, "b": 4, "c": 5}


def test_a_failed_candidate_ends_its_request_alone():
    client = inline(options={"fake.fail": 0})
    client.add(make_spec((1,), SamplingParams(n=2, max_tokens=3), request_id="a"))
    client.add(make_spec((2,), SamplingParams(max_tokens=3, ignore_eos=True), request_id="b"))
    news = client.step()
    assert [type(one.error) for one in news if one.request_id == "a" and one.error] == [RequestFailed]
    assert client.unfinished == ("b",)
    assert len(run(client)["b"]) >= 2


def test_aborted_requests_leave_nothing():
    client, records = inline(), []
    client.on_finished(records.append)
    client.add(make_spec((1, 2), SamplingParams(n=3, max_tokens=50), request_id="a"))
    client.add(make_spec((1, 2), PoolingParams(), request_id="v"))
    client.abort(["a", "v", "nobody"])
    assert client.unfinished == ()
    assert [record.finish for record in records] == [FinishReason.ABORT] * 2
    assert client.stats.running == client.stats.waiting == 0


def test_a_request_takes_one_place_in_the_queue_with_all_its_candidates():
    client = inline(max_queue=1)
    client.add(make_spec((1,), SamplingParams(n=3), request_id="a"))
    assert client.stats.waiting == 3
    with pytest.raises(Overloaded):
        client.add(make_spec((1,), SamplingParams(), request_id="b"))
    assert client.unfinished == ("a",)
    client.abort(["a"])
    assert client.stats.waiting == 0


def test_the_end_of_the_engine():
    client, records = inline(options={"fake.die": 0}), []
    client.on_finished(records.append)
    client.add(make_spec((1,), SamplingParams(), request_id="a"))
    with pytest.raises(EngineDied):
        client.step()
    assert client.unfinished == ()
    assert [record.finish for record in records] == [FinishReason.ERROR]
    with pytest.raises(EngineDied):
        client.add(make_spec((1,), SamplingParams(), request_id="b"))

"""One record takes a request from the client to the scheduler, with all its fields and any new one."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from lsv.engine.engine import Engine
from lsv.engine.messages import ClientMessage
from lsv.engine.parts.transfers import TransfersPart
from lsv.grammars.guide import Guide
from lsv.request.group import RequestGroup
from lsv.request.media import Array, Media, Positions, keep_apart
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.request import Request
from lsv.request.spec import RequestSpec
from lsv.request.thinking import Thinking
from lsv.scheduler.policy import Fcfs
from lsv_base.processes.wire import FrameReader, encode_frame
from lsv_offline.inline_client import InlineClient
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config, part_of
from lsv_testing.fakes.text import letters

TOKENIZER = letters(97)
PROMPT = Prompt(
    ids=(1, 2, 3),
    text="BCD",
    media=(Media(b"a" * 32, "image", 1, 1, {"pixels": Array("uint8", (2,), b"ab")}),),
    positions=Positions(3, bytes(36), -1),
    encoder_text="CD",
    second=2,
)
ASKED = {
    "prompts": (PROMPT,),
    "sampling": SamplingParams(max_tokens=7, top_k=3, stop_token_ids=(9,), bad_words=("A",), seed=5),
    "request_id": "r",
    "priority": 3,
    "priority_at_least": -7,
    "salt": b"tenant",
    "thinking": Thinking(begins=("<think>",), ends=("</think>",), open=True, budget=3),
    "tenant": "alice",
    "weight": 2.0,
    "timeout": 60.0,
    "hand_on": True,
    "kv_peer": "10.0.0.1:5600",
    "kv_pending": True,
    "trace": {"traceparent": "00-1-2-01"},
}

Admitted = Callable[[RequestSpec], Request]


class Annotated(RequestSpec, frozen=True, kw_only=True):
    """What a new field would be, before anybody reads it."""

    note: str = ""


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> Admitted:
    """Sends a request through a client, the wire and the engine; gives what the scheduler gets."""
    engine: Engine[None] = Engine(engine_config(), FakeExecutor(), Fcfs(), parts=core_parts)
    client = InlineClient(engine, TOKENIZER, engine.start(lambda *_: None))
    found: list[RequestGroup] = []
    submit = engine.submit

    def over_the_wire(owner: None, message: object) -> None:
        if type(message.spec) is RequestSpec:
            (message,) = FrameReader(ClientMessage).feed(encode_frame(message))
        submit(owner, message)

    monkeypatch.setattr(engine, "submit", over_the_wire)
    for kind in (Guide, TransfersPart):
        monkeypatch.setattr(part_of(engine, kind), "open", lambda group: False)
    monkeypatch.setattr(engine.scheduler, "check_request", lambda spec: None)
    monkeypatch.setattr(engine.scheduler, "add", lambda group, now: found.append(group))

    def send(spec: RequestSpec) -> Request:
        client.add(spec)
        return found[-1].make(0)

    return send


def test_every_field_reaches_the_scheduler(scheduled: Admitted):
    defaults = RequestSpec(prompts=(Prompt(ids=(1,)),), request_id="")
    given = RequestSpec(**ASKED)
    same = [name for name in RequestSpec.__struct_fields__ if getattr(given, name) == getattr(defaults, name)]
    assert same == ["pooling", "adapter", "preparing"], "a field without a value of its own is not tested here"
    assert all(getattr(PROMPT, name) for name in Prompt.__struct_fields__)

    request = scheduled(given)
    prompt = msgspec.structs.replace(PROMPT, text=None, encoder_text=None)  # they stay with the client
    assert request.spec == msgspec.structs.replace(given, prompts=(prompt,))
    assert (request.prompt, request.positions) == (prompt.ids, prompt.positions)
    assert request.media == keep_apart(prompt.media, given.salt)
    assert (request.sampling, request.pooling) == (given.sampling, None)
    assert (request.salt, request.seed) == (b"tenant", 5)
    assert (request.stop_ids, request.bad_words) == ((96, 9), ((0,),))


def test_a_pooling_request_is_the_same_record(scheduled: Admitted):
    given = RequestSpec(**{**ASKED, "sampling": None, "pooling": PoolingParams(normalize=False)})
    assert scheduled(given).spec.pooling == PoolingParams(normalize=False, task="embed", kind="last")


def test_a_new_field_needs_no_edit_on_the_way(scheduled: Admitted):
    assert scheduled(Annotated(**ASKED, note="read me")).spec.note == "read me"

"""Parts can be left out: nothing in core knows one, and an engine without one refuses by name what it is for."""

from __future__ import annotations

import pytest
from tests.contracts.test_structure import rooms

from lsv.engine.engine import Engine
from lsv.engine.messages import Submit
from lsv.engine.parts.part import Part
from lsv.offers import PartOffer
from lsv.plugins import builtin
from lsv.request.params import SamplingParams
from lsv.request.spec import RequestSpec
from lsv.request.structured import StructuredOutputsParams
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import BadRequest
from lsv_runtime import plugin as runtime
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config
from lsv_testing.fakes.requests import make_spec

OFFERS = {offer.name: offer for offer in builtin.lsv_parts()}
SEAM = {"lsv.engine.parts", "lsv.engine.parts.part", "lsv.engine.parts.made"}
ENGINE = (
    "lsv.engine.engine",
    "lsv.engine.loop",
    "lsv.engine.main",
    "lsv.engine.orders.orders",
    "lsv.engine.open_requests",
)


def ask(sampling: SamplingParams | None = None, **fields: object) -> Submit:
    params = sampling or SamplingParams(temperature=0.0, max_tokens=2)
    spec: RequestSpec = make_spec((1, 2, 3), params, request_id="r", **fields)  # type: ignore[arg-type]
    return Submit(id=0, spec=spec)


NEEDING = {
    "adapter": ask(adapter="legal"),
    "kv": ask(kv_peer="other:1"),
    "grammar": ask(SamplingParams(structured_outputs=StructuredOutputsParams(regex="x"))),
    "beams": ask(SamplingParams(use_beam_search=True, n=2, best_of=2, logprobs=0)),
}


@pytest.mark.parametrize("name", OFFERS)
def test_no_module_of_core_imports_a_part(name: str) -> None:
    module = OFFERS[name].load.partition(":")[0]
    assert {user for user, others in rooms.module_graph("lsv").items() if module in others} == set()


@pytest.mark.parametrize("module", ENGINE)
def test_the_engine_knows_the_seam_alone(module: str) -> None:
    parts = {other for other in rooms.module_graph("lsv")[module] if other.startswith("lsv.engine.parts")}
    assert parts <= SEAM


@pytest.mark.parametrize("offer", [*runtime.lsv_parts()], ids=lambda offer: offer.name)
def test_no_module_of_the_runtime_imports_a_part(offer: PartOffer) -> None:
    module = offer.worker.partition(":")[0]
    assert {user for user, others in rooms.module_graph("lsv_runtime").items() if module in others} == set()


@pytest.mark.parametrize("name", OFFERS)
def test_an_engine_without_a_part_serves_and_refuses(name: str) -> None:
    def without(engine: Engine[str]) -> list[Part]:
        return [part for part in core_parts(engine) if part.name != name]

    engine: Engine[str] = Engine(engine_config(), FakeExecutor(), Fcfs(), parts=without)  # type: ignore[arg-type]
    engine.start(lambda *_: None)
    if name in NEEDING:
        with pytest.raises(BadRequest, match=f"this engine was started without the part '{name}'"):
            engine.submit("a", NEEDING[name])
    engine.submit("a", ask())
    assert sum(len(update.tokens) for _ in range(9) for update in engine.step().get("a", ())) == 2
    engine.close()

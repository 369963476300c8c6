"""Manifest: a model architecture, a weight format, a logits processor, a command, a setting, and event hooks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from lsv import hookimpl
from lsv.offers import CommandOffer, LogitsProcessorOffer, ModelOffer, QuantizerOffer
from lsv.settings import Setting

if TYPE_CHECKING:
    from lsv.config import EngineConfig
    from lsv.request.outputs import RequestRecord

api = 2


@hookimpl
def lsv_models() -> Iterable[ModelOffer]:
    yield ModelOffer("sample", ("SampleForCausalLM",), "lsv_sample.model:Sample")


@hookimpl
def lsv_quantizers() -> Iterable[QuantizerOffer]:
    yield QuantizerOffer("sample-int8", "lsv_sample.quantizer:make", online=True)


class Forbidden(msgspec.Struct, frozen=True):
    """What a request asks of the logits processor."""

    token: int


@hookimpl
def lsv_logits_processors() -> Iterable[LogitsProcessorOffer]:
    yield LogitsProcessorOffer("sample-forbid", "lsv_sample.forbid:Forbid", arguments="lsv_sample.plugin:Forbidden")


@hookimpl
def lsv_commands() -> Iterable[CommandOffer]:
    yield CommandOffer("greet", "lsv_sample.greet:run", "say hello")


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    yield Setting(name="sample.greeting", default="hello", env=("SAMPLE_GREETING",), help="what lsv greet says")


@hookimpl
def lsv_engine_started(config: EngineConfig) -> None:
    from lsv_sample import usage

    usage.engine_started(config)


@hookimpl
def lsv_engine_stopped(config: EngineConfig) -> None:
    from lsv_sample import usage

    usage.engine_stopped(config)


@hookimpl
def lsv_request_finished(record: RequestRecord) -> None:
    from lsv_sample import usage

    usage.add(record)


@hookimpl(optionalhook=True)
def lsv_api_app_created(app: Any, client: Any) -> None:
    from lsv_sample import usage

    usage.add_route(app)

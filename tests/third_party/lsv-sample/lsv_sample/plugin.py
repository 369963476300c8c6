"""Manifest: a model architecture, a weight format, a command and a setting."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import CommandOffer, ModelOffer, QuantizerOffer
from lsv.settings import Setting

api = 1


@hookimpl
def lsv_models() -> Iterable[ModelOffer]:
    yield ModelOffer("sample", ("SampleForCausalLM",), "lsv_sample.model:Sample")


@hookimpl
def lsv_quantizers() -> Iterable[QuantizerOffer]:
    yield QuantizerOffer("sample-int8", "lsv_sample.quantizer:make", online=True)


@hookimpl
def lsv_commands() -> Iterable[CommandOffer]:
    yield CommandOffer("greet", "lsv_sample.greet:run", "say hello")


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    yield Setting(name="sample.greeting", default="hello", env=("SAMPLE_GREETING",), help="what lsv greet says")

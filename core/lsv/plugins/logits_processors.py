"""Logits processors by the names that requests ask for them by, and the arguments they ask with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lsv.config import EngineConfig
from lsv.offers import LogitsProcessorOffer, load_object
from lsv.plugins.catalog import Catalog
from lsv.request.params import CALLABLES, SamplingParams
from lsv_base.errors import BadRequest, ConfigError, PluginError

BATCHED = "batched"
"""The processor that runs those of ``EngineConfig.logits_processors``."""

_PARAM = "logits_processors"


def complete_processors(config: EngineConfig, params: SamplingParams, *, inline: bool) -> SamplingParams:
    """The parameters as they will run: with the processors of the engine, which are told what the request asks.

    ``inline`` says whether the engine is in this process. Raises ``BadRequest`` for functions where it is not, for
    arguments that nobody would read, and for beam search beside processors.
    """
    if CALLABLES in params.logits_processors and not (inline and config.executor == "inline"):
        raise BadRequest(
            f"{_PARAM}: functions can't be sent to an engine in another process; "
            "name a class by LLM(logits_processors=[...]) or --logits-processors instead",
            param=_PARAM,
        )
    if config.logits_processors and params.use_beam_search:
        raise BadRequest(
            "use_beam_search: beams go by the model's own log probabilities, and this engine has logits processors "
            "(--logits-processors) that change what answers are drawn from: leave it out, or use one without",
            param="use_beam_search",
        )
    if (
        config.processed_logprobs
        and params.logprobs is not None
        and (config.logits_processors or params.logits_processors)
    ):
        raise BadRequest(
            "logprobs: this engine shows processed log probabilities (--logprobs-mode), which do not cover logits "
            "processors: leave logprobs or the processors out",
            param="logprobs",
        )
    if config.logits_processors:
        told = params.replace(logits_processors={})
        return params.replace(logits_processors={**params.logits_processors, BATCHED: told})
    if params.extra_args:
        raise BadRequest(
            "extra_args: this engine has no logits processors that could use it; set them with "
            "LLM(logits_processors=[...]) or --logits-processors",
            param="extra_args",
        )
    return params


def name_processors(given: Any) -> Any:
    """Classes of batched processors by the names that the engine finds them by. Raises ``ConfigError``."""
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, list | tuple):
        raise ConfigError(f"{_PARAM} must be a list of classes or of their names, got {given!r:.100}", param=_PARAM)
    return [_name_of(one) if isinstance(one, type) else one for one in given]


def _name_of(kind: type[Any]) -> str:
    if "<locals>" in kind.__qualname__:
        raise ConfigError(
            f"logits_processors: {kind.__qualname__} stands in a function: define it in a module, where the engine "
            "can import it",
            param=_PARAM,
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def check_processors(catalog: Catalog, asked: Mapping[str, Any]) -> None:
    """Raises ``BadRequest`` where a request asks for a processor that nobody offers, or with unfit arguments."""
    for name, arguments in asked.items():
        read_arguments(find_processor(catalog, name), arguments)


def find_processor(catalog: Catalog, name: str) -> LogitsProcessorOffer:
    """Raises ``BadRequest`` that names the known ones, ``PluginError`` where two plugins offer the name."""
    try:
        return catalog.find(LogitsProcessorOffer, name)
    except ConfigError as unknown:
        raise BadRequest(f"{_PARAM}: {unknown.message}", param=_PARAM) from None


def read_arguments(offer: LogitsProcessorOffer, arguments: Any) -> Any:
    """The arguments as the offer's type; raises ``BadRequest`` where they are not."""
    if offer.arguments is None:
        return arguments
    try:
        kind = load_object(offer.arguments)
    except Exception as cause:
        raise PluginError(
            f"the arguments of logits processor {offer.name!r} can't be loaded from {offer.arguments}: {cause}"
        ) from cause
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as cause:
        raise BadRequest(f"{_PARAM}: {offer.name}: {cause}", param=_PARAM) from None

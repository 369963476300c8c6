"""Speculation: ``--speculative-config`` and the single options that say the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsv.config import Choices, Drafts
from lsv.offers import DrafterOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.draft_model import (
    ChooseQuantizer,
    Target,
    check_fit,
    find_checkpoint,
    read_draft_model,
    read_longest,
    recognise,
)
from lsv.settings import Settings
from lsv_base.errors import ConfigError

_NAME = "speculative_config"
_MOST = 128
"""Drafts of a row; more than these never pay."""
_DEFAULT = 5
_EXACT, _TYPICAL = "rejection_sampler", "typical_acceptance_sampler"
_TERMS = {"posterior_threshold": 0.09, "posterior_alpha": 0.3}
"""Of typical acceptance, with their defaults."""
_KEYS = (
    "method", "model", "num_speculative_tokens", "disable_by_batch_size", "max_model_len", "adaptive",
    "acceptance_method", *_TERMS,
)  # fmt: skip
"""What is asked for of any drafter."""
_NEUTRAL = (
    "draft_tensor_parallel_size", "code_revision", "enforce_eager", "disable_logprobs", "disable_padded_drafter_batch",
    "tensor_parallel_size",
)  # fmt: skip
"""What other servers say of the draft's model, or of verifying, and changes no answer."""
_KEPT = {"rejection_sample_method": "strict"}
"""How drafts are accepted that the model says itself: other ways change answers."""
_SINGLE = {
    "num_speculative_tokens": "num_speculative_tokens",
    "disable_by_batch_size": "speculative_disable_by_batch_size",
    "prompt_lookup_max": "ngram_prompt_lookup_max",
    "prompt_lookup_min": "ngram_prompt_lookup_min",
    "quantization": "speculative_model_quantization",
    "max_model_len": "speculative_max_model_len",
    "acceptance_method": "spec_decoding_acceptance_method",
    "posterior_threshold": "typical_acceptance_sampler_posterior_threshold",
    "posterior_alpha": "typical_acceptance_sampler_posterior_alpha",
}
"""Keys, and the options of their own that mean them."""


def choose_drafts(
    settings: Settings, target: Target, choose_quantizer: ChooseQuantizer, catalog: Catalog, choices: Choices
) -> Drafts | None:
    """What drafts tokens for ``target``, and how many; None where nothing does. Raises ``ConfigError`` naming what is
    wrong.
    """
    asked = _read(settings)
    method, named = _method(asked, settings), asked.get("model") or settings["speculative_model"]
    if method is None:
        _refuse_alone(settings)
        return None
    if not target.cached:
        raise ConfigError(f"{_NAME}: drafts are for answers, and this model gives none: leave it out", param=_NAME)
    offer, folder = _find_offer(method, named, asked, settings, catalog)
    options = {key: value for key, value in asked.items() if key in offer.options}
    _refuse_unknown(asked, offer)
    most = _number(asked, "num_speculative_tokens", _DEFAULT)
    model = None
    if offer.needs == "nothing" and folder is not None:
        raise ConfigError(f"{_NAME}: {offer.name} drafts without a checkpoint of its own: leave out model", param=_NAME)
    if offer.needs != "nothing":
        if folder is None:
            raise ConfigError(f"{_NAME}: {method} needs a checkpoint: say which by its key model", param=_NAME)
        found = read_draft_model(folder, offer, asked, target, choose_quantizer, catalog)
        check_fit(found, offer, target)
        model = found.model
        if found.places is not None:
            most = _number(asked, "num_speculative_tokens", found.places)
            if most > found.places:
                raise ConfigError(
                    f"{_NAME}: num_speculative_tokens={most}, and {named} drafts {found.places} at most", param=_NAME
                )
    if not 1 <= most <= _MOST:
        raise ConfigError(f"{_NAME}: num_speculative_tokens must be 1 to {_MOST}, got {most}", param=_NAME)
    rows = None if asked.get("disable_by_batch_size") is None else _number(asked, "disable_by_batch_size", 0)
    adaptive = asked.get("adaptive", True)
    if not isinstance(adaptive, bool):
        raise ConfigError(f"{_NAME}: adaptive must be true or false, got {adaptive!r:.100}", param=_NAME)
    choices.note("drafts", offer.name, f"up to {most} tokens, verified in the step of the next token")
    typical = _read_terms(asked, choices)
    return Drafts(
        drafter=offer.name, most=most, options=options, model=model, rows=rows, longest=read_longest(asked),
        typical=typical, adaptive=adaptive,
    )  # fmt: skip


def _read_terms(asked: Mapping[str, Any], choices: Choices) -> tuple[float, float] | None:
    """Those of typical acceptance; None where drafts are accepted that the model says itself."""
    method = asked.get("acceptance_method") or _EXACT
    if method not in (_EXACT, _TYPICAL):
        raise ConfigError(
            f"{_NAME}: acceptance_method must be {_EXACT} or {_TYPICAL}, got {method!r:.100}", param=_NAME
        )
    if method == _EXACT:
        if given := [key for key in _TERMS if asked.get(key) is not None]:
            raise ConfigError(f"{_NAME}: {given[0]} is a term of {_TYPICAL}: ask for that, too", param=_NAME)
        return None
    found = {key: default if asked.get(key) is None else asked[key] for key, default in _TERMS.items()}
    for key, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ConfigError(f"{_NAME}: {key} must be a number from 0 on, got {value!r:.100}", param=_NAME)
    choices.note("drafts", method, "asked for: drawn answers are not those that come without drafts")
    return float(found["posterior_threshold"]), float(found["posterior_alpha"])


def _find_offer(
    method: str, named: Any, asked: Mapping[str, Any], settings: Settings, catalog: Catalog
) -> tuple[DrafterOffer, Path | None]:
    """What drafts so, and the checkpoint that is named, if any. Heads that are named as a model are known for such."""
    folder = None
    if named and not _is_lookup(named):
        folder = find_checkpoint(str(named), asked.get("revision"), settings, catalog)
        method = recognise(folder, method, catalog)
    method = next((offer.name for offer in catalog.offers(DrafterOffer) if method in offer.aliases), method)
    try:
        return catalog.find(DrafterOffer, method), folder
    except ConfigError as unknown:
        raise ConfigError(f"{_NAME}: {unknown.message}", param=_NAME) from None


def _is_lookup(named: Any) -> bool:
    return named in ("ngram", "[ngram]")


def _read(settings: Settings) -> dict[str, Any]:
    """The JSON, and below it what is said by options of their own."""
    given = settings[_NAME] or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{_NAME} must be a JSON object", param=_NAME)
    single = {key: settings[name] for key, name in _SINGLE.items() if settings[name] is not None}
    return {**single, **given}


def _method(asked: Mapping[str, Any], settings: Settings) -> str | None:
    """The drafter's name. A model that drafts is known by its method, or by being named in brackets."""
    method, model = asked.get("method"), asked.get("model")
    for key, value in (("method", method), ("model", model)):
        if not isinstance(value, str | None):
            raise ConfigError(f"{_NAME}: {key} must be a name, got {value!r:.100}", param=_NAME)
    if method:
        return str(method)
    named = model or settings["speculative_model"]
    if _is_lookup(named):
        return "ngram"
    if settings[_NAME] and not named:
        raise ConfigError(f'{_NAME}: it must say how to draft, such as {{"method": "ngram"}}', param=_NAME)
    return "draft_model" if named else None


def _refuse_alone(settings: Settings) -> None:
    """Raises ``ConfigError`` for options that say how to draft where nothing does."""
    for name in _SINGLE.values():
        if settings[name] not in (None, _EXACT):
            raise ConfigError(
                f"{name}: nothing drafts: say what does by --speculative-model or --speculative-config", param=name
            )


def _refuse_unknown(asked: Mapping[str, Any], offer: DrafterOffer) -> None:
    of_checkpoints = () if offer.needs == "nothing" else ("revision",) if offer.places else ("revision", "quantization")
    known = (*_KEYS, *of_checkpoints, *offer.options)
    for key, value in asked.items():
        if key in _KEPT and value not in (None, _KEPT[key]):
            raise ConfigError(f"{_NAME}: {key} must be {_KEPT[key]}: others change answers", param=_NAME)
        if value is not None and key not in (*known, *_NEUTRAL, *_KEPT):
            raise ConfigError(f"{_NAME}: {offer.name} has no {key!r:.100}; it has {', '.join(known)}", param=_NAME)


def _number(asked: Mapping[str, Any], key: str, default: int) -> int:
    value = asked.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{_NAME}: {key} must be a whole number, got {value!r:.100}", param=_NAME)
    return value

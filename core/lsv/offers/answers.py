"""What shapes answers: logits processors, parsers, grammars, drafters, and the order of requests."""

from __future__ import annotations

from typing import Literal

import msgspec

from lsv.request.calls import CallForm

Stage = Literal["constraints", "processors"]
"""Where in the sampling chain a logits processor stands; see ``LogitsProcessorOffer``."""


class LogitsProcessorOffer(msgspec.Struct, frozen=True):
    """Code that changes the logits of requests that ask for it, in ``SamplingParams.logits_processors``."""

    name: str
    """What requests ask for it by; of two processors of one stage, the first by name goes first."""
    load: str
    """Names an ``lsv_runtime.logits_processor.LogitsProcessor``, a ``(config, vocab_size, device)``."""
    stage: Stage = "processors"
    """``"constraints"`` go first of all: before allowed ids, bad words, bias and penalties. ``"processors"`` see the
    logits that these leave, before temperature, top-k, top-p and min-p."""
    arguments: str | None = None
    """Names the msgspec type of a request's arguments. Clients import it, so it is light. None takes any, unchecked."""


class AnswerParserOffer(msgspec.Struct, frozen=True):
    """A form that families write parts of their answers in; see ``lsv.text.answer_parser``."""

    name: str
    load: str
    """Names a ``(AnswerForm) -> AnswerParser``, made for every answer; light to import."""
    marks: tuple[str, ...] = ()
    """What it looks for; special tokens among these are shown to it, and left out of what readers see."""
    templates: tuple[str, ...] = ()
    """Texts that a chat template has, all of them, where it is the right one; empty: it is not chosen by itself."""
    architectures: tuple[str, ...] = ()
    """Names from config.json's ``architectures`` that it is for; empty is any."""
    aliases: tuple[str, ...] = ()
    derives: bool = False
    """Whether ``load`` names a ``(lsv.text.round_trip.Write) -> lsv.text.answer_parser.ModelParser | None``."""


class ToolParserOffer(AnswerParserOffer, frozen=True):
    """A form of calls of tools."""

    form: CallForm | None = None
    """What grammars must know of it; None where no schema can be kept to while the model decides whether it calls."""
    short_ids: bool = False
    """Whether chat templates want ids of calls to be nine letters and digits."""


class ReasoningParserOffer(AnswerParserOffer, frozen=True):
    """A form of thinking that stands before an answer."""


class GrammarOffer(msgspec.Struct, frozen=True):
    """A back end that says which tokens may follow where an answer must have a form."""

    name: str
    """What requests and operators ask for it by."""
    load: str
    """Names a ``(vocabulary) -> lsv.grammars.grammar.GrammarBackend``, made in the engine at the first use."""
    rank: int = 0
    """The one with the highest rank is the default."""
    aliases: tuple[str, ...] = ()
    """Names of back ends that it replaces if no plugin offers them."""


class DrafterOffer(msgspec.Struct, frozen=True):
    """What proposes tokens that a later step verifies."""

    name: str
    """What ``--speculative-config`` names it by, as its method."""
    load: str
    """Names a ``lsv_runtime.drafts.drafter.Drafter``, a ``(Drafts)``, made in the worker."""
    options: tuple[str, ...] = ()
    """The keys of ``--speculative-config`` that it takes beside those of all drafters."""
    needs: Literal["nothing", "model", "heads"] = "nothing"
    """The checkpoint that it drafts with: a language model, heads on the states of the target model, or none."""
    aliases: tuple[str, ...] = ()
    """Other names of it."""
    model_types: tuple[str, ...] = ()
    """``model_type`` of the heads' config.json, by which the method is known where only the checkpoint is named."""
    architectures: tuple[str, ...] = ()
    """The same of ``architectures``."""
    within: bool = False
    """Whether it drafts by further layers of the target model's own checkpoint (``ModelOffer.further``)."""
    places: tuple[str, ...] = ()
    """The keys of the heads' config.json, any of which says how many tokens they draft; none for as many as wanted."""


class PolicyOffer(msgspec.Struct, frozen=True):
    """A scheduling order."""

    name: str
    load: str

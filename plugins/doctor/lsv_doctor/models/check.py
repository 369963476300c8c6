"""Whether lsv says of a class what transformers says, on a tiny checkpoint, through the engine with all it does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import transformers

from lsv import LLM, RequestOutput, SamplingParams
from lsv.plugins import load
from lsv_base.errors import BadRequest, ConfigError, LsvError
from lsv_doctor.models.comparing import find_difference
from lsv_doctor.models.orders import Cell, Order, TextModel, Verdict
from lsv_doctor.models.prompts import draw, make_prompts
from lsv_doctor.models.reasons import in_words, reason_of
from lsv_doctor.models.reference import Reference
from lsv_doctor.models.tiny import make_model, save
from lsv_doctor.models.trials import Subject, try_all
from lsv_doctor.models.wrappers import config_of, marks_of, offer_blind_towers
from lsv_doctor.models.wrappers.halves import NO_TEXT, kind_of, language_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NEW_TOKENS = 32
_LENGTH = 128

ALL_AT_ONCE: dict[str, Any] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 24,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "block_size": 16,
}
"""Prompts come in chunks among answers, share prefixes, and, with few blocks, lose theirs."""
_BLOCKS = {False: (18, 36, 72, 144), True: (22, 29, 44, 88, 144)}
"""Without and with an encoder. The first number that holds one request is taken: layers of several kinds have blocks of
their own."""


@dataclass
class Known:
    """What is found out on the way to a verdict."""

    text_model: TextModel = ""
    met: list[str] = field(default_factory=list)
    cells: dict[str, Cell] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def check(order: Order, folder: Path) -> Verdict:
    """Make the checkpoint in ``folder``, run it, compare; then try what else the class can do."""
    torch.manual_seed(0)
    known = Known()
    if order.family in NO_TEXT:
        known.text_model, why = NO_TEXT[order.family]
        return _verdict(order, known, "untried", why)
    try:
        subject, asked = _prepare(order, folder, known)
    except Exception as error:
        return _verdict(order, known, "untried", in_words(error))
    try:
        difference = _compare(subject, known)
    except LsvError as error:
        return _verdict(order, known, "refused", reason_of(error))
    except Exception as error:
        return _verdict(order, known, "crash", in_words(error))
    reference = subject.reference
    odd = reference.contradiction(draw(20, 97), NEW_TOKENS, subject.read)
    detail = "; ".join(filter(None, (difference, asked, reference.mended, odd)))
    if not difference:
        known.cells, known.reasons = try_all(subject)
    return _verdict(order, known, "wrong" if difference else "runs", detail)


def _verdict(order: Order, known: Known, state: Any, detail: str) -> Verdict:
    return Verdict(
        architecture=order.architecture, state=state, detail=detail, text_model=known.text_model, cells=known.cells,
        reasons=known.reasons, met=tuple(known.met),
    )  # fmt: skip


def _prepare(order: Order, folder: Path, known: Known) -> tuple[Subject, str]:
    """The checkpoint, with a reference that has answered once; and, in words, which part of a wrapper that is."""
    offer_blind_towers()
    model = make_model(getattr(transformers, order.architecture), config_of(order))
    known.text_model = kind_of(model.config) if order.wraps else "encoder-decoder" if order.encodes else "decoder"
    encodes = known.text_model == "encoder-decoder"
    asked, why = language_model(model) if order.wraps and not encodes else (model, "")
    subject = Subject(order, folder, model, asked, Reference(asked), encodes, _stops(model))
    subject.reference.log_probabilities(draw(20, 98), subject.read)
    save(model, folder)
    return subject, why


def _compare(subject: Subject, known: Known) -> str:
    """The difference between lsv's answers and the reference's, in words; empty where there is none."""
    try:
        answers = _ask(subject, known, ALL_AT_ONCE)
    except BadRequest:  # of a model whose prompts are never cut, since their tokens see one another
        answers = _ask(subject, known, {**ALL_AT_ONCE, "max_num_batched_tokens": _LENGTH})
    return find_difference(answers, subject.reference.log_probabilities, subject.stops)


def _ask(subject: Subject, known: Known, options: Mapping[str, Any]) -> list[RequestOutput]:
    """Answers to all prompts, twice: with the log probabilities of prompts, and without, so that prefixes are found."""
    prompts = list(make_prompts(encodes=subject.encodes))
    shown = SamplingParams(
        temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False, logprobs=-1, prompt_logprobs=-1
    )
    hidden = msgspec.structs.replace(shown, prompt_logprobs=None)
    with _open(subject, options) as llm:
        subject.config, subject.catalog = llm.config, load(llm.config.plugins).catalog
        whole = llm.generate(prompts, shown, use_tqdm=False)
        again = llm.generate(prompts, hidden, use_tqdm=False)
        known.met = _met(llm)
    return [*whole, *again]


def _open(subject: Subject, options: Mapping[str, Any]) -> LLM:
    """An engine with as few blocks as it takes."""
    numbers = _BLOCKS[subject.encodes]
    for blocks in numbers[:-1]:
        with suppress(ConfigError):
            return subject.open(num_gpu_blocks_override=blocks, **options)
    return subject.open(num_gpu_blocks_override=numbers[-1], **options)


def _met(llm: LLM) -> list[str]:
    stats = llm.stats
    happened = {"prefix": stats.prefix_hits_total > 0, "preemption": stats.preemptions_total > 0}
    return [name for name, was in happened.items() if was]


def _stops(model: PreTrainedModel) -> frozenset[int]:
    """The token that counts for nothing where it stands, of models that look for one among their tokens; and those in
    whose places a wrapper's own forward puts media, although there are none.
    """
    padding: int | None = getattr(model.config.get_text_config(), "pad_token_id", None)
    return frozenset(marks_of(model.config)) | ({padding} if padding is not None else frozenset())

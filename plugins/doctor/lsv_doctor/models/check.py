"""Whether lsv says of a class what transformers says, on a tiny checkpoint, through the engine with all it does."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import transformers

from lsv import LLM, SamplingParams
from lsv.errors import ConfigError, LsvError
from lsv.platform import Communicator, Group
from lsv.plugins import load
from lsv.weights.quantizer import PlainLinear
from lsv.worker.load.declared import Declared, declare
from lsv_doctor.models.comparing import find_difference
from lsv_doctor.models.orders import Order, Verdict
from lsv_doctor.models.reference import Reference
from lsv_doctor.models.tiny import make_model, save, tiny_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NEW_TOKENS = 32
_LENGTH = 128
_FIRST, _LAST = 5, 250
"""The ids of prompts; special tokens lie around them."""
_LENGTHS = (1, 2, 7, 15, 16, 17, 33, 60)
_SHARED = 32
_ENCODED = (128, 97, 5)
"""Tokens of the texts that encoders read, in turns."""
_FORMAT = "fp8"
"""Takes weights of any shape."""

ALL_AT_ONCE: Mapping[str, Any] = {
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

    quantised: bool = False
    parallel: bool = False
    met: list[str] = field(default_factory=list)


def check(order: Order, folder: Path) -> Verdict:
    """Make the checkpoint in ``folder``, run it, compare."""
    torch.manual_seed(0)
    known = Known()
    try:
        model = make_model(getattr(transformers, order.architecture), tiny_config(order.family))
        reference, read = Reference(model), _draw(_ENCODED[0], 99) if order.encodes else ()
        reference.log_probabilities(_draw(20, 98), read)
        save(model, folder)
    except Exception as error:
        return _verdict(order, known, "untried", _in_words(error))
    try:
        difference = _compare(order, folder, reference, _padding(model), known)
    except LsvError as error:
        return _verdict(order, known, "refused", _in_a_line(str(error)))
    except Exception as error:
        return _verdict(order, known, "crash", _in_words(error))
    odd = reference.contradiction(_draw(20, 97), NEW_TOKENS, read)
    detail = "; ".join(filter(None, (difference, reference.mended, odd)))
    return _verdict(order, known, "wrong" if difference else "runs", detail)


def _verdict(order: Order, known: Known, state: Any, detail: str) -> Verdict:
    return Verdict(
        architecture=order.architecture, state=state, detail=detail, quantised=known.quantised,
        parallel=known.parallel, met=tuple(known.met),
    )  # fmt: skip


def _compare(order: Order, folder: Path, reference: Reference, padding: int | None, known: Known) -> str:
    with _open(folder, _BLOCKS[order.encodes]) as llm:
        _look(llm, known)
        shown = SamplingParams(
            temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False, logprobs=-1, prompt_logprobs=-1
        )
        whole = llm.generate(list(_prompts(order)), shown, use_tqdm=False)
        hidden = msgspec.structs.replace(shown, prompt_logprobs=None)
        again = llm.generate(list(_prompts(order)), hidden, use_tqdm=False)
        known.met = _met(llm)
    return find_difference([*whole, *again], reference.log_probabilities, padding)


def _open(folder: Path, numbers: Sequence[int]) -> LLM:
    options: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "max_model_len": _LENGTH,
        "max_logprobs": -1,
    }
    for blocks in numbers[:-1]:
        with suppress(ConfigError):
            return LLM(str(folder), num_gpu_blocks_override=blocks, **options, **ALL_AT_ONCE)
    return LLM(str(folder), num_gpu_blocks_override=numbers[-1], **options, **ALL_AT_ONCE)


def _prompts(order: Order) -> Iterator[Any]:
    """Ragged ones; every other begins with the same tokens."""
    shared = _draw(_SHARED, 96)
    for number, length in enumerate(_LENGTHS):
        ids = [*(shared if number % 2 else ()), *_draw(length, number)]
        if order.encodes:
            yield {
                "encoder_prompt": {"prompt_token_ids": _draw(_ENCODED[number % len(_ENCODED)], 99)},
                "decoder_prompt": {"prompt_token_ids": ids},
            }
        else:
            yield {"prompt_token_ids": ids}


def _draw(count: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(_FIRST, _LAST) for _ in range(count)]


def _met(llm: LLM) -> list[str]:
    stats = llm.stats
    happened = {"prefix": stats.prefix_hits_total > 0, "preemption": stats.preemptions_total > 0}
    return [name for name, was in happened.items() if was]


def _padding(model: PreTrainedModel) -> int | None:
    """The token that counts for nothing where it stands, of models that look for one among their tokens."""
    found: int | None = getattr(model.config.get_text_config(), "pad_token_id", None)
    return found


# What else is true of it


def _look(llm: LLM, known: Known) -> None:
    """Declare it quantised, and for one of two ranks."""
    config, catalog = llm.config, load(llm.config.plugins).catalog
    try:
        quantised = declare(msgspec.structs.replace(config, quantization=_FORMAT), catalog)
        known.quantised = _count_plain(quantised) < _count_plain(declare(config, catalog))
    except LsvError:
        pass
    try:
        declare(config, catalog, communicator=_OneOfTwo())
        known.parallel = True
    except LsvError:
        pass


def _count_plain(declared: Declared) -> int:
    return sum(isinstance(module, PlainLinear) for module in declared.model.modules())


class _OneOfTwo(Communicator):
    """Stands for a rank beside which there is another."""

    group = Group("tp", (0, 1), 0, "")

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return x

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        return x

    def self_test(self) -> None:
        pass


# Errors


def _in_words(error: BaseException) -> str:
    """The error in a line, and where it was raised."""
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    where = f" at {'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {_in_a_line(str(error))}{where}"


def _in_a_line(text: str) -> str:
    return " ".join(text.split())[:300]

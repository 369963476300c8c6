"""Compiles grammars in threads, within a time limit, and caches them."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

from lsv.config import EngineConfig
from lsv.grammars import masks
from lsv.grammars.grammar import Grammar, GrammarBackend, Vocabulary
from lsv.grammars.thinking import Anything
from lsv.plugins.catalog import Catalog
from lsv.plugins.grammars import find_backend
from lsv.request.structured import StructuredOutputsParams
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import BadRequest, LsvError, RequestFailed

log = logging.getLogger(__name__)

SECONDS = 1.5
"""Time limit for compiling a grammar. A short limit tells a client early that its grammar is too complex."""
KEPT = 64
"""Size of the cache of grammars. The least recently used one is evicted first."""
_THREADS = 2
_PARAM = "structured_outputs"

Compiled = Grammar | LsvError
"""A grammar, or the error from compiling it."""
Asked = StructuredOutputsParams | None
"""The form of answers; None for any form, if only thoughts are followed."""


class Pending:
    """A grammar that is being compiled."""

    def __init__(self, future: Future[Compiled]) -> None:
        self.began: float | None = None
        """When its back end began, by ``time.monotonic``."""
        self.future = future


_Name = tuple[bytes, Asked]
"""The tenant's salt, and the requested form."""


class GrammarCompiler:
    """Compiles the forms that requests ask for, each once, with the back ends of plugins."""

    def __init__(self, catalog: Catalog, config: EngineConfig, *, seconds: float = SECONDS, kept: int = KEPT) -> None:
        self._catalog, self._config = catalog, config
        self._seconds, self._kept = seconds, kept
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammars")
        self._lock = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._backends: dict[str, GrammarBackend] = {}
        self._known: OrderedDict[_Name, Compiled | Pending] = OrderedDict()
        self._firsts: dict[_Name, masks.Mask] = {}
        self.vocab_size = 0
        """The width of the logits; known once the model is loaded."""

    def find(self, asked: Asked, salt: bytes = b"") -> Compiled | None:
        """The compiled grammar or its error. Starts compiling on the first call, and returns None until that ends.

        Each ``salt`` has its own cache entries, so that timing does not reveal what other tenants have requested.
        """
        name = salt, asked
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._start(name)
            self._forget_old()
        self._known.move_to_end(name)
        if not isinstance(known, Pending):
            return known
        if known.future.done():
            found = known.future.result()
        elif known.began is not None and time.monotonic() - known.began > self._seconds:
            form = "this" if asked is None else asked.form
            found = BadRequest(
                f"{_PARAM}: {form} takes more than {self._seconds:g} s to compile: simplify it", param=_PARAM
            )
        else:
            return None
        if isinstance(found, LsvError) and not isinstance(found, BadRequest):
            del self._known[name]  # not the grammar's fault: a later try may succeed
        else:
            self._known[name] = found
        return found

    def first(self, asked: Asked, salt: bytes) -> masks.Mask | None:
        """The mask of the first token of a compiled grammar. Do not modify it."""
        return self._firsts.get((salt, asked))

    def wait(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a grammar to be compiled."""
        futures = [known.future for known in self._known.values() if isinstance(known, Pending)]
        wait(futures, seconds, return_when="FIRST_COMPLETED")

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens, known once a grammar has been compiled."""
        assert self._vocabulary is not None, "nothing has been compiled"
        return self._vocabulary

    @property
    def eos(self) -> tuple[int, ...]:
        """The tokens that end answers, known once a grammar has been compiled."""
        return () if self._vocabulary is None else self._vocabulary.eos

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, name: _Name) -> Pending:
        pending = Pending(Future())

        def work() -> None:
            pending.future.set_result(self._compile(name, pending))

        self._threads.submit(work)
        return pending

    def _compile(self, name: _Name, pending: Pending) -> Compiled:
        _, asked = name
        try:
            if asked is None:
                self._read_vocabulary()
                return Anything()
            backend = self._backend(asked.backend)
            pending.began = time.monotonic()  # what it takes to make a back end is nobody's fault
            grammar = backend.compile(asked)
            self._firsts[name] = _first_mask(grammar, self.vocab_size)
            return grammar
        except LsvError as error:
            return error
        except Exception as cause:
            log.exception("a grammar could not be compiled")
            return RequestFailed(f"{_PARAM}: {type(cause).__name__}: {cause}")

    def _backend(self, name: str | None) -> GrammarBackend:
        offer = find_backend(self._catalog, name, self._config.grammars)
        vocabulary = self._read_vocabulary()
        with self._lock:
            if offer.name not in self._backends:
                make: Callable[[Vocabulary], GrammarBackend] = self._catalog.load(offer)
                self._backends[offer.name] = make(vocabulary)
            return self._backends[offer.name]

    def _read_vocabulary(self) -> Vocabulary:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = read_vocabulary(Tokenizer.of(self._config), self.vocab_size)
            return self._vocabulary

    def _forget_old(self) -> None:
        if len(self._known) > self._kept:
            old = next((name for name, known in self._known.items() if not isinstance(known, Pending)), None)
            if old is not None:
                del self._known[old]
                self._firsts.pop(old, None)


def _first_mask(grammar: Grammar, vocab_size: int) -> masks.Mask:
    """Computed while compiling, because the first mask is slow: later masks reuse much of its work."""
    words = np.zeros(masks.words_of(vocab_size), np.uint32)
    grammar.begin().fill(words.data)
    return words


def read_vocabulary(tokenizer: Tokenizer, size: int) -> Vocabulary:
    """The vocabulary of a model with ``size`` logits. Raises ``BadRequest`` if no token ends answers."""
    if not tokenizer.eos_ids:
        raise BadRequest(
            f"{_PARAM}: a grammar needs a token that ends answers, and the tokenizer has none (eos)", param=_PARAM
        )
    known = min(size, tokenizer.vocab_size)
    tokens = [tokenizer.token_bytes(token) for token in range(known)]
    return Vocabulary(
        tokens=tokens + [b""] * (size - known),
        special=frozenset(tokenizer.special_ids) | frozenset(tokenizer.eos_ids),
        eos=tuple(token for token in tokenizer.eos_ids if token < size),
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
    )

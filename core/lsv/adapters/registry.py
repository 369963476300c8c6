"""The adapters that an engine serves, by name. Imports no torch: workers read what is registered here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lsv.adapters import peft
from lsv.adapters.reading.process import look
from lsv.config import AdapterOptions, Confinement, EngineConfig, OptionValue
from lsv.errors import BadRequest, CheckpointError, EngineDied, ErrorRecord, LsvError, ModelNotFound, NotYet
from lsv.request.adapter import Adapter, owner_of

log = logging.getLogger(__name__)

Control = Callable[[str, Mapping[str, OptionValue]], object]
"""Carries out an order on every worker, once nothing is in flight."""


Then = Callable[[Adapter | None, LsvError | None], None]
"""Told of an adapter that is there, or of why it will not be."""
_READERS = 4
"""Adapters that are looked at a time: one whose files are slow does not hold up the next."""
_PAUSE = 0.001
_AGAIN = 0.02
"""Seconds after which workers are asked again for an adapter that they read: each time waits for what is in flight."""


@dataclass(slots=True, eq=False)
class _Loading:
    """An adapter that is being read: first looked at here, then by every worker for itself."""

    name: str
    path: str
    waiting: list[Then]
    digest: Future[bytes]
    adapter: Adapter | None = None
    began: float = field(default_factory=time.monotonic)
    again: float = 0.0


class AdapterRegistry:
    """Names, and what they stand for. What is unloaded is served to the end by requests that have begun."""

    def __init__(self, config: EngineConfig, control: Control, in_use: Callable[[], Collection[Adapter]]) -> None:
        """``in_use`` tells the adapters of requests that have not ended."""
        self._options = config.adapters
        self._served = (*config.served_names, *config.unlisted_names)
        self._control, self._in_use = control, in_use
        self._adapters: dict[str, Adapter] = {}
        self._loading: list[_Loading] = []
        self._retired: list[Adapter] = []
        """Those without a name, which workers hold for the requests that have begun."""
        self._reader = ThreadPoolExecutor(_READERS, "adapters")
        self._count = 0

    @property
    def listed(self) -> tuple[Adapter, ...]:
        """All adapters that have a name, in the order in which they got it."""
        return tuple(self._adapters.values())

    def start(self) -> None:
        """Load those that are served from the start. Raises ``CheckpointError``."""
        for name, path in () if self._options is None else self._options.modules:
            try:
                self.load(name, path)
            except BadRequest as error:
                raise CheckpointError(f"lora_modules: {name}: {error.message}", param="lora_modules") from error

    def find(self, name: str, then: Then | None = None) -> Adapter | None:
        """The adapter that a request asks for; None for one in the folder of adapters that has to be read first.

        That goes on in ``advance``, and ``then`` is told; without it, it is waited for. Raises ``ModelNotFound`` for a
        name that stands for none.
        """
        found = self._adapters.get(name)
        if found is not None:
            return found
        loading = next((one for one in self._loading if one.name == name), None)
        if loading is not None:
            return self._start(loading.waiting.append, then)
        path = None if self._options is None else resolve(self._options, name)
        if path is None:
            known = ", ".join(self._adapters) or "none"
            raise ModelNotFound(f"there is no adapter {name}; this engine has: {known}", param="model")
        return self._start(partial(self.begin, name, path), then)

    def load(self, name: str, path: str, *, replace: bool = False) -> Adapter:
        """``begin``, and wait for it. Raises ``BadRequest`` for what can't be served, too."""
        adapter = self._start(partial(self.begin, name, path, replace=replace), None)
        assert adapter is not None, "it was waited for"
        return adapter

    def begin(self, name: str, path: str, then: Then, *, replace: bool = False) -> None:
        """Load an adapter and give it a name; ``replace`` takes that from another one.

        It is read beside the steps, and ``then`` is told of it, or of what refuses it. Raises ``BadRequest`` where
        adapters are not enabled, and for a name that is taken.
        """
        if self._options is None:
            raise BadRequest("adapters are not enabled: start with --enable-lora", param="lora_name")
        peft.check_name(name)
        if name in self._served:
            raise BadRequest(f"the name {name} is taken: it is the model's; choose another", param="lora_name")
        if any(one.name == name for one in self._loading):
            raise BadRequest(f"the name {name} is taken: its adapter is being read; try again later", param="lora_name")
        if name in self._adapters and not replace:
            raise BadRequest(f"the name {name} is taken: unload that adapter first", param="lora_name")
        self._loading.append(
            _Loading(name, path, [then], self._reader.submit(_look_at, Path(path), self._options.confinement))
        )

    @property
    def busy(self) -> bool:
        """Whether there is something for ``advance`` to do, now or soon."""
        return bool(self._loading or self._retired)

    def advance(self) -> None:
        """Go on with adapters that are being read, if it is time to ask for them; have workers forget old ones."""
        if self._retired:
            self._drop_unused()
        for loading in [one for one in self._loading if one.digest.done()]:
            now = time.monotonic()
            if now >= loading.again:
                self._ask_for(loading, now)
            if loading not in self._loading:  # the next one has its turn after a step
                return

    def _ask_for(self, loading: _Loading, now: float) -> None:
        """Ask the workers for an adapter, and give it its name once all have it."""
        try:
            if loading.adapter is None:
                self._count += 1
                loading.adapter = Adapter(self._count, loading.name, loading.path, loading.digest.result())
            self._control(
                "load_adapter", {"id": loading.adapter.id, "path": loading.path, "digest": loading.adapter.digest.hex()}
            )
        except NotYet:
            loading.again = now + max(_AGAIN, (now - loading.began) / 4)
        except CheckpointError as error:
            if loading.adapter is not None:
                self._control("drop_adapter", {"id": loading.adapter.id})  # other ranks may have it
            self._end(loading, BadRequest(error.message, param="lora_path"))
        except EngineDied:
            raise
        except LsvError as error:
            self._end(loading, error)
        else:
            replaced = self._adapters.pop(loading.name, None)
            self._adapters[loading.name] = loading.adapter
            log.info("adapter %s loaded from %s", loading.name, loading.path)
            self._end(loading, None)
            if replaced is not None:
                log.info("adapter %s is replaced", loading.name)
                self._retire(replaced)

    def interrupt(self, error: LsvError) -> None:
        """The workers are about to sleep: what is being read is not loaded, because of ``error``."""
        for loading in tuple(self._loading):
            self._end(loading, error)
        self._drop_unused()

    def carry_out(self, order: str, arguments: Mapping[str, str], then: Callable[[ErrorRecord | None], None]) -> None:
        """``load_adapter`` or ``unload_adapter``; ``then`` is told once that is done, with why if it was refused."""
        name = arguments.get("name", "")
        try:
            if order == "load_adapter":

                def tell(adapter: Adapter | None, error: LsvError | None) -> None:
                    then(None if error is None else error.record())

                return self.begin(name, arguments.get("path", ""), tell, replace="replace" in arguments)
            self.unload(name)
        except LsvError as error:
            then(error.record())
        else:
            then(None)

    def unload(self, name: str) -> None:
        """Take an adapter's name from it. Workers forget it unless requests use it. Raises ``ModelNotFound``."""
        adapter = self._adapters.pop(name, None)
        if adapter is None:
            raise ModelNotFound(f"there is no adapter {name}", param="lora_name")
        self._retire(adapter)
        log.info("adapter %s unloaded", name)

    def _retire(self, adapter: Adapter) -> None:
        """Nobody can ask for an adapter any more."""
        self._retired.append(adapter)
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Have workers forget what no request uses any more that has begun."""
        used = self._in_use()
        unused = [adapter for adapter in self._retired if adapter not in used]
        self._retired = [adapter for adapter in self._retired if adapter in used]
        for adapter in unused:
            self._control("drop_adapter", {"id": adapter.id})

    def _start(self, begin: Callable[[Then], None], then: Then | None) -> Adapter | None:
        """Begin something that tells of an adapter. Without ``then``, wait for that and raise what refuses it."""
        if then is not None:
            begin(then)
            return None
        told: list[tuple[Adapter | None, LsvError | None]] = []
        begin(lambda adapter, error: told.append((adapter, error)))
        while not told:
            self.advance()
            time.sleep(_PAUSE)
        adapter, error = told[0]
        if error is not None:
            raise error
        return adapter

    def _end(self, loading: _Loading, error: LsvError | None) -> None:
        """Report that an adapter is there, or will not be."""
        self._loading.remove(loading)
        for then in loading.waiting:
            then(loading.adapter if error is None else None, error)


def resolve(options: AdapterOptions, name: str) -> str | None:
    """The folder of an adapter that is served by its name without being listed, if there is one of that name."""
    if (
        options.folder is None
        or owner_of(name)
        or not peft.is_name(name)
        or name != Path(name).name
        or name.startswith(".")
    ):
        return None
    path = Path(options.folder) / name
    return str(path) if (path / peft.CONFIG).is_file() else None


def _look_at(folder: Path, mode: Confinement) -> bytes:
    with peft.reading(folder):
        return look(folder, mode)

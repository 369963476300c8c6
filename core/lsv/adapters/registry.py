"""The adapters that an engine serves, by name. Imports no torch: workers read what is registered here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lsv.adapters import peft
from lsv.adapters.orders import DropAdapter, ReadAdapter
from lsv.adapters.reading.process import look
from lsv.config import AdapterOptions, Confinement, EngineConfig
from lsv.request.adapter import Adapter, owner_of
from lsv_base.errors import BadRequest, CheckpointError, EngineDied, LsvError, ModelNotFound, NotYet
from lsv_base.processes.orders import WorkerOrder

log = logging.getLogger(__name__)

Control = Callable[[WorkerOrder], object]
"""Runs an order on every worker, once nothing is in flight."""


Then = Callable[[Adapter | None, LsvError | None], None]
"""Called with the loaded adapter, or with the error that prevented loading."""
_READERS = 4
"""Adapters that are hashed at the same time, so that one with slow files does not delay the next."""
_PAUSE = 0.001
_AGAIN = 0.02
"""Seconds between polls of workers that read an adapter. Each poll waits for the steps in flight."""


@dataclass(slots=True, eq=False)
class _Loading:
    """An adapter that is being loaded: hashed here first, then read by every worker."""

    name: str
    path: str
    waiting: list[Then]
    digest: Future[bytes]
    adapter: Adapter | None = None
    began: float = field(default_factory=time.monotonic)
    again: float = 0.0


class AdapterRegistry:
    """Maps names to adapters. An unloaded adapter stays until the last request that uses it ends."""

    def __init__(self, config: EngineConfig, control: Control, in_use: Callable[[], Collection[Adapter]]) -> None:
        """``in_use`` returns the adapters of unfinished requests."""
        self._options = config.adapters
        self._served = (*config.served_names, *config.unlisted_names)
        self._control, self._in_use = control, in_use
        self._adapters: dict[str, Adapter] = {}
        self._loading: list[_Loading] = []
        self._retired: list[Adapter] = []
        """Unloaded adapters that workers keep for running requests."""
        self._reader = ThreadPoolExecutor(_READERS, "adapters")
        self._count = 0

    @property
    def listed(self) -> tuple[Adapter, ...]:
        """All named adapters, in the order in which they were loaded."""
        return tuple(self._adapters.values())

    def start(self) -> None:
        """Load the adapters of ``lora_modules``. Raises ``CheckpointError``."""
        for name, path in () if self._options is None else self._options.modules:
            try:
                self.load(name, path)
            except BadRequest as error:
                raise CheckpointError(f"lora_modules: {name}: {error.message}", param="lora_modules") from error

    def find(self, name: str, then: Then | None = None) -> Adapter | None:
        """The adapter that a request names, or None if it must first be loaded from the adapter folder.

        ``advance`` continues the loading and calls ``then`` when it ends. Without ``then``, this call waits. Raises
        ``ModelNotFound`` for an unknown name.
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
        """``begin``, then wait. Also raises ``BadRequest`` for an adapter that can't be served."""
        adapter = self._start(partial(self.begin, name, path, replace=replace), None)
        assert adapter is not None, "it was waited for"
        return adapter

    def begin(self, name: str, path: str, then: Then, *, replace: bool = False) -> None:
        """Load an adapter under a name; with ``replace``, the name may already be in use.

        Steps go on meanwhile. ``then`` is called with the adapter or the error. Raises ``BadRequest`` if adapters are
        not enabled or the name is taken.
        """
        if self._options is None:
            raise BadRequest("adapters are not enabled: start with --enable-lora", param="lora_name")
        peft.check_name(name)
        if name in self._served:
            raise BadRequest(f"the name {name} is taken by the model: choose another", param="lora_name")
        if any(one.name == name for one in self._loading):
            raise BadRequest(
                f"the name {name} is taken by an adapter that is still loading: try again later", param="lora_name"
            )
        if name in self._adapters and not replace:
            raise BadRequest(f"the name {name} is taken: unload that adapter first", param="lora_name")
        self._loading.append(
            _Loading(name, path, [then], self._reader.submit(_look_at, Path(path), self._options.confinement))
        )

    @property
    def busy(self) -> bool:
        """Whether ``advance`` has something to do, now or soon."""
        return bool(self._loading or self._retired)

    def advance(self) -> None:
        """Poll workers for adapters that are loading, and drop unloaded adapters that are no longer in use."""
        if self._retired:
            self._drop_unused()
        for loading in [one for one in self._loading if one.digest.done()]:
            now = time.monotonic()
            if now >= loading.again:
                self._ask_for(loading, now)
            if loading not in self._loading:  # handle the next one after a step
                return

    def _ask_for(self, loading: _Loading, now: float) -> None:
        """Ask the workers for an adapter, and register its name once all workers have it."""
        try:
            if loading.adapter is None:
                self._count += 1
                loading.adapter = Adapter(self._count, loading.name, loading.path, loading.digest.result())
            self._control(ReadAdapter(loading.adapter.id, loading.path, loading.adapter.digest.hex()))
        except NotYet:
            loading.again = now + max(_AGAIN, (now - loading.began) / 4)
        except CheckpointError as error:
            if loading.adapter is not None:
                self._control(DropAdapter(loading.adapter.id))  # other ranks may have it
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
                log.info("adapter %s was replaced", loading.name)
                self._retire(replaced)

    def interrupt(self, error: LsvError) -> None:
        """Fail all adapters that are loading with ``error``, because the workers are about to sleep."""
        for loading in tuple(self._loading):
            self._end(loading, error)
        self._drop_unused()

    def unload(self, name: str) -> None:
        """Remove an adapter's name. Workers drop the adapter once no request uses it. Raises ``ModelNotFound``."""
        adapter = self._adapters.pop(name, None)
        if adapter is None:
            raise ModelNotFound(f"there is no adapter {name}", param="lora_name")
        self._retire(adapter)
        log.info("adapter %s unloaded", name)

    def _retire(self, adapter: Adapter) -> None:
        """Drop an adapter that has lost its name, once no request uses it."""
        self._retired.append(adapter)
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Have workers drop unloaded adapters that no running request uses."""
        used = self._in_use()
        unused = [adapter for adapter in self._retired if adapter not in used]
        self._retired = [adapter for adapter in self._retired if adapter in used]
        for adapter in unused:
            self._control(DropAdapter(adapter.id))

    def _start(self, begin: Callable[[Then], None], then: Then | None) -> Adapter | None:
        """Call ``begin`` with ``then``. Without ``then``, wait for the adapter and raise the error if loading fails."""
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
        """Report an adapter that has been loaded or has failed to load."""
        self._loading.remove(loading)
        for then in loading.waiting:
            then(loading.adapter if error is None else None, error)


def resolve(options: AdapterOptions, name: str) -> str | None:
    """The folder of an unlisted adapter that the adapter folder has under this name, if any."""
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

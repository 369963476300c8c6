"""Checks the arguments of offline calls, except prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from lsv.request.adapter import Adapter, LoRARequest
from lsv.request.params import PoolingParams, SamplingParams
from lsv_base.errors import BadRequest, ConfigError

Params = TypeVar("Params", SamplingParams, PoolingParams)


def refuse_prompt_adapter(request: object) -> None:
    """Raises ``BadRequest`` for anything but None."""
    if request is not None:
        raise BadRequest(
            "prompt adapters are not supported: lsv serves LoRA adapters, see lora_request",
            param="prompt_adapter_request",
        )


def refuse_loggers(loggers: object) -> None:
    """Raises ``ConfigError`` for anything but None, because such loggers expect vLLM's own records."""
    if loggers is not None:
        raise ConfigError(
            "stat_loggers are not supported: use the plugin hook lsv_request_finished instead",
            param="stat_loggers",
        )


def refuse_adapter(request: object) -> None:
    """Raises ``BadRequest`` for anything but None, in calls without adapters."""
    if request is not None:
        raise BadRequest(
            "this call does not support adapters: use generate, chat or encode, or leave lora_request out",
            param="lora_request",
        )


def list_adapters(given: LoRARequest | Sequence[LoRARequest | None] | None, count: int) -> Sequence[LoRARequest | None]:
    """The adapter of each of ``count`` prompts. Raises ``BadRequest`` for a wrong number or type."""
    listed = list(given) if isinstance(given, Sequence) else [given] * count
    if len(listed) != count:
        raise BadRequest(f"{count} prompts need {count} lora_request, got {len(listed)}", param="lora_request")
    for one in listed:
        if one is not None and not isinstance(one, LoRARequest):
            raise BadRequest(f"lora_request must be LoRARequest, got {one!r:.100}", param="lora_request")
    return listed


def list_priorities(given: Any, count: int) -> Sequence[int]:
    """The priority of each of ``count`` prompts, 0 unless given. Raises ``BadRequest``."""
    if given is None:
        return [0] * count
    if not isinstance(given, Sequence) or len(given) != count or not all(isinstance(one, int) for one in given):
        raise BadRequest(
            f"priority must be a list of {count} whole numbers, one for each prompt, got {given!r:.100}",
            param="priority",
        )
    return given


def list_texts(given: Any, name: str) -> list[str]:
    """A text or a list of texts, as a list. Raises ``BadRequest`` for anything else."""
    listed = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else None
    if listed is None or not all(isinstance(one, str) for one in listed):
        raise BadRequest(f"{name} must be a string or a list of strings, got {given!r:.100}", param=name)
    return listed


def check_kind(given: object, kinds: type[Any] | tuple[type[Any], ...], name: str) -> None:
    """Raises ``BadRequest`` unless the argument ``name`` is of one of the ``kinds``."""
    if not isinstance(given, kinds):
        names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise BadRequest(f"{name} must be {names}, got {given!r:.100}", param=name)


class AskedAdapters:
    """The adapters of earlier calls. The same name with another number or folder is a new adapter."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def is_new(self, asked: LoRARequest, served: Iterable[Adapter]) -> bool:
        """Whether an adapter must be loaded; it replaces a ``served`` one with the same name."""
        held = next((one for one in served if one.name == asked.name), None)
        number = self._numbers.get(asked.name, asked.adapter_id)
        return held is None or held.path != asked.path or number != asked.adapter_id

    def note(self, asked: LoRARequest) -> None:
        """Record that the adapter is served now."""
        self._numbers[asked.name] = asked.adapter_id


def list_params(
    given: Params | Sequence[Params] | None, count: int, default: Callable[[], Params], name: str
) -> Sequence[Params]:
    """The parameters of each of ``count`` prompts. Raises ``BadRequest`` for a wrong number or type."""
    if given is None:
        given = default()
    listed = list(given) if isinstance(given, Sequence) else [given] * count
    if len(listed) != count:
        raise BadRequest(f"{count} prompts need {count} {name}, got {len(listed)}", param=name)
    kind = SamplingParams if name == "sampling_params" else PoolingParams
    for one in listed:
        if not isinstance(one, kind):
            raise BadRequest(f"{name} must be {kind.__name__}, got {one!r:.100}", param=name)
    return listed

"""What offline calls take beside prompts, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from lsv.errors import BadRequest, ConfigError
from lsv.request.adapter import Adapter, LoRARequest
from lsv.request.params import PoolingParams, SamplingParams

Params = TypeVar("Params", SamplingParams, PoolingParams)


def refuse_prompt_adapter(request: object) -> None:
    """Raises ``BadRequest`` for anything but None."""
    if request is not None:
        raise BadRequest(
            "prompt adapters are not served: an adapter is a LoRA, named by lora_request",
            param="prompt_adapter_request",
        )


def refuse_loggers(loggers: object) -> None:
    """Raises ``ConfigError`` for anything but None: such loggers are given vLLM's own records."""
    if loggers is not None:
        raise ConfigError(
            "stat_loggers are not called: a plugin hears of every request by the hook lsv_request_finished",
            param="stat_loggers",
        )


def refuse_adapter(request: object) -> None:
    """Raises ``BadRequest`` for anything but None, where a call serves no adapter."""
    if request is not None:
        raise BadRequest("adapters are not served here; those of generate, chat and encode are", param="lora_request")


def list_adapters(given: LoRARequest | Sequence[LoRARequest | None] | None, count: int) -> Sequence[LoRARequest | None]:
    """The adapter of each of ``count`` prompts. Raises ``BadRequest`` for too few, too many or others."""
    listed = list(given) if isinstance(given, Sequence) else [given] * count
    if len(listed) != count:
        raise BadRequest(f"{count} prompts need as many lora_request, got {len(listed)}", param="lora_request")
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
            f"priority must hold one whole number for each of {count} prompts, got {given!r:.100}", param="priority"
        )
    return given


def list_texts(given: Any, name: str) -> list[str]:
    """One text, or each of several. Raises ``BadRequest`` for anything else."""
    listed = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else None
    if listed is None or not all(isinstance(one, str) for one in listed):
        raise BadRequest(f"{name} must be a text or a list of texts, got {given!r:.100}", param=name)
    return listed


def check_kind(given: object, kinds: type[Any] | tuple[type[Any], ...], name: str) -> None:
    """Raises ``BadRequest`` unless the argument ``name`` is of one of the ``kinds``."""
    if not isinstance(given, kinds):
        names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise BadRequest(f"{name} must be {names}, got {given!r:.100}", param=name)


class AskedAdapters:
    """The adapters that calls have asked for: another number or folder means another one, whatever its name."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def is_new(self, asked: LoRARequest, served: Iterable[Adapter]) -> bool:
        """Whether an adapter has to be loaded, in the place of one of its name if that is ``served``."""
        held = next((one for one in served if one.name == asked.name), None)
        number = self._numbers.get(asked.name, asked.adapter_id)
        return held is None or held.path != asked.path or number != asked.adapter_id

    def note(self, asked: LoRARequest) -> None:
        """It is served now."""
        self._numbers[asked.name] = asked.adapter_id


def list_params(
    given: Params | Sequence[Params] | None, count: int, default: Callable[[], Params], name: str
) -> Sequence[Params]:
    """The parameters of each of ``count`` prompts. Raises ``BadRequest`` for too few, too many or others."""
    if given is None:
        given = default()
    listed = list(given) if isinstance(given, Sequence) else [given] * count
    if len(listed) != count:
        raise BadRequest(f"{count} prompts need as many {name}, got {len(listed)}", param=name)
    kind = SamplingParams if name == "sampling_params" else PoolingParams
    for one in listed:
        if not isinstance(one, kind):
            raise BadRequest(f"{name} must be {kind.__name__}, got {one!r:.100}", param=name)
    return listed

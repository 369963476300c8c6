"""Classes of batched logits processors by their names, ``package.module:Class``, also of code written for vLLM."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import msgspec

from lsv.batched import interface
from lsv.config import EngineConfig
from lsv.engine.offline.configs import ModelConfig, ParallelConfig, SchedulerConfig
from lsv.errors import ConfigError
from lsv.logits_processor import LogitsProcessor
from lsv.request.params import SamplingParams

OPTION = "logits_processors"
_METHODS = ("apply", "is_argmax_invariant", "update_state")


class VllmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a processor is told of the engine, under the names that vLLM's users read it by."""

    model_config: ModelConfig
    parallel_config: ParallelConfig
    scheduler_config: SchedulerConfig

    @classmethod
    def of(cls, config: EngineConfig, vocab_size: int) -> VllmConfig:
        model = msgspec.structs.replace(ModelConfig.of(config, None), vocab_size=vocab_size)
        return cls(
            model_config=model,
            parallel_config=ParallelConfig.of(config),
            scheduler_config=SchedulerConfig.of(config),
        )


def load_processor(name: str) -> type[Any]:
    """The class called ``package.module:Class``.

    Its module may import the names of vLLM that such processors use: where vLLM is not installed, ours stand for them
    while it is imported. Raises ``ConfigError`` for what can't be imported, or has not the form.
    """
    module, _, path = name.partition(":")
    if not module or not path:
        raise _unfit(name, "it must be called package.module:Class")
    try:
        with _names_of_vllm():
            found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as cause:
        raise _unfit(name, f"it can't be imported: {type(cause).__name__}: {cause}") from cause
    if not isinstance(found, type):
        raise _unfit(name, "it is no class")
    if issubclass(found, LogitsProcessor):
        raise _unfit(name, "its form is that of plugins: a plugin offers it, by the hook lsv_logits_processors")
    missing = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if missing:
        raise _unfit(name, f"it has no {' and no '.join(missing)}: its form must be that of lsv.batched.interface")
    return found


def _unfit(name: str, why: str) -> ConfigError:
    return ConfigError(f"--logits-processors {name}: {why}", param=OPTION)


@contextmanager
def _names_of_vllm() -> Iterator[None]:
    """While this lasts, modules of vLLM can be imported; those that are its own, where it is installed."""
    if importlib.util.find_spec("vllm") is not None:
        yield
        return
    made = {name: ModuleType(name) for name in _MODULES}
    for name, module in made.items():
        vars(module).update(_MODULES[name], __path__=[])
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            sys.modules.pop(name, None)


_PROCESSORS = {
    name: getattr(interface, name)
    for name in (
        "AdapterLogitsProcessor",
        "BatchUpdate",
        "LogitsProcessor",
        "MoveDirectionality",
        "RequestLogitsProcessor",
        "process_dict_updates",
    )
}
_MODULES: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"SamplingParams": SamplingParams},
    "vllm.config": {"VllmConfig": VllmConfig},
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.logits_process": {"LogitsProcessor": interface.RequestLogitsProcessor},
    "vllm.sampling_params": {"SamplingParams": SamplingParams},
    "vllm.v1": {},
    "vllm.v1.sample": {},
    "vllm.v1.sample.logits_processor": _PROCESSORS,
    "vllm.v1.sample.logits_processor.builtin": _PROCESSORS,
    "vllm.v1.sample.logits_processor.interface": _PROCESSORS,
}

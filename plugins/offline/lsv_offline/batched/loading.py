"""Classes of batched logits processors by their names, ``package.module:Class``, also of code written for vLLM."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

from lsv.config import EngineConfig
from lsv_base.errors import ConfigError
from lsv_offline.configs import ModelConfig, ParallelConfig, SchedulerConfig
from lsv_offline.vllm_names.processors import BORROWED
from lsv_runtime.logits_processor import LogitsProcessor

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

    Its package may import the names of vLLM that such processors use, also when the class is looked up: where vLLM is
    not installed, ours stand for them meanwhile. Raises ``ConfigError`` for what can't be imported, or has not the
    form.
    """
    module, _, path = name.partition(":")
    if not module or not path:
        raise _unfit(name, "it must be called package.module:Class")
    try:
        with BORROWED.borrowed():
            found: Any = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
    except Exception as cause:
        raise _unfit(name, _explain(cause, module.partition(".")[0])) from cause
    if not isinstance(found, type):
        raise _unfit(name, "it is no class")
    if issubclass(found, LogitsProcessor):
        raise _unfit(name, "its form is that of plugins: a plugin offers it, by the hook lsv_logits_processors")
    missing = [method for method in _METHODS if not callable(getattr(found, method, None))]
    if missing:
        raise _unfit(name, f"it has no {' and no '.join(missing)}; lsv_offline.batched.interface has its form")
    return found


def _explain(cause: Exception, package: str) -> str:
    """Why a class can't be imported from ``package``."""
    if isinstance(cause, ModuleNotFoundError) and cause.name == package:
        return f"no package {package} is installed: pip install {package.replace('_', '-')}"
    return f"it can't be imported: {type(cause).__name__}: {cause}"


def _unfit(name: str, why: str) -> ConfigError:
    return ConfigError(f"--logits-processors {name}: {why}", param=OPTION)

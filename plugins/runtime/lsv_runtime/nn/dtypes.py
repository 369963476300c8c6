"""The names of dtypes in a configuration, as torch dtypes."""

from __future__ import annotations

import torch

from lsv_base.errors import ConfigError

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_KV_DTYPES = {
    **_DTYPES,
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}


def model_dtype(name: str) -> torch.dtype:
    """The dtype a model computes in; raises ``ConfigError`` for an unknown name."""
    return _find(name, _DTYPES, "dtype")


def cache_dtype(name: str, model: torch.dtype) -> torch.dtype:
    """The dtype of the KV cache; ``auto`` is the model's."""
    return model if name == "auto" else _find(name, _KV_DTYPES, "kv_cache_dtype")


def _find(name: str, dtypes: dict[str, torch.dtype], option: str) -> torch.dtype:
    try:
        return dtypes[name]
    except KeyError:
        known = ", ".join(dtypes)
        raise ConfigError(f"{option} {name} is unknown: choose one of {known}", param=option) from None

"""Adapters: small changes to a model's weights that requests ask for by name."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lsv_base.errors import BadRequest

_OWNED = "~"
"""Separates the account from the adapter's name. Names from clients can't contain it."""


def owned_name(account: str, name: str) -> str:
    """The engine's name of an account's adapter; for an adapter of the operator, ``name`` itself."""
    return f"{account}{_OWNED}{name}" if account else name


def owner_of(name: str) -> str:
    """The account that owns an adapter, from the engine's name of it; empty for an adapter of the operator."""
    return name.partition(_OWNED)[0] if _OWNED in name else ""


def shown_name(name: str) -> str:
    """The name under which an adapter's owner knows it, from the engine's name of it."""
    return name.rpartition(_OWNED)[2]


class Viewer(msgspec.Struct, frozen=True):
    """Who asks for models: an account sees its own adapters and the operator's, the operator sees all."""

    account: str = ""
    operator: bool = True

    def sees(self, name: str) -> bool:
        """Whether the viewer may use an adapter, given the engine's name of it."""
        return self.operator or owner_of(name) in ("", self.account)

    def calls(self, name: str) -> str:
        """The viewer's name of an adapter: the short name for an account, the engine's name for the operator."""
        return name if self.operator else shown_name(name)


OPERATOR = Viewer()


class Adapter(msgspec.Struct, frozen=True):
    """An adapter that an engine has loaded."""

    id: int
    """Its number in the engine: counts up from 1 and is never reused."""

    name: str
    """The name in requests. An account's adapter has an ``owned_name``."""

    path: str
    """The folder it was read from."""

    digest: bytes
    """The hash of its files. KV blocks are shared only between equal hashes."""


class LoRARequest(msgspec.Struct, frozen=True):
    """The adapter of a request, as in vLLM: its name, a unique number, and its folder.

    Raises ``BadRequest`` for a number below 1, and without a name or a folder.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str | Path = ""
    long_lora_max_len: int | None = None
    base_model_name: str | None = None

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise BadRequest(f"lora_int_id must be at least 1, got {self.lora_int_id}", param="lora_request")
        if not self.lora_name or not self.lora_path:
            raise BadRequest("a LoRARequest needs lora_name and lora_path", param="lora_request")
        if self.long_lora_max_len is not None:
            raise BadRequest(
                "long_lora_max_len is not supported: adapters never change rope scaling; leave it out",
                param="lora_request",
            )

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return str(self.lora_path)

"""Adapters: small changes to a model's weights that requests ask for by name."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lsv.errors import BadRequest

_OWNED = "~"
"""Stands between an account and its adapter; clients can't write it in a name."""


def owned_name(account: str, name: str) -> str:
    """What an engine calls an adapter that belongs to an account; ``name`` itself for one of the operator's."""
    return f"{account}{_OWNED}{name}" if account else name


def owner_of(name: str) -> str:
    """The account that an adapter belongs to, by what the engine calls it; empty for one of the operator's."""
    return name.partition(_OWNED)[0] if _OWNED in name else ""


def shown_name(name: str) -> str:
    """What the owner of an adapter calls it."""
    return name.rpartition(_OWNED)[2]


class Viewer(msgspec.Struct, frozen=True):
    """Who asks for models: an account sees its own adapters and the operator's, the operator sees all."""

    account: str = ""
    operator: bool = True

    def sees(self, name: str) -> bool:
        """Whether an adapter is served to it, by what the engine calls that."""
        return self.operator or owner_of(name) in ("", self.account)

    def calls(self, name: str) -> str:
        """What it calls an adapter: its own by their short names, the operator those of accounts by their long ones."""
        return name if self.operator else shown_name(name)


OPERATOR = Viewer()


class Adapter(msgspec.Struct, frozen=True):
    """An adapter that an engine has loaded."""

    id: int
    """Names it in the engine: counts up from 1, and is never used again."""

    name: str
    """What requests call it; that of an account is an ``owned_name``."""

    path: str
    """The folder it was read from."""

    digest: bytes
    """The hash of its files: KV blocks are only the same if this is."""


class LoRARequest(msgspec.Struct, frozen=True):
    """An adapter for a request, as vLLM's users name it: its name, a number that no other has, and its folder.

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
            raise BadRequest("long_lora_max_len: adapters never change the rope's scaling", param="lora_request")

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return str(self.lora_path)

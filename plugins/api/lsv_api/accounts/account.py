"""Accounts: the owners of API keys, from ``--api-key`` and from a file."""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from lsv_base.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")

Share = Annotated[float, msgspec.Meta(ge=0.001, le=1000)]
Priority = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=1 << 31)]
Amount = Annotated[float, msgspec.Meta(ge=1, le=1e15)]


class Account(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One owner of API keys. Keys are known by their hashes alone. Bounds that are None do not apply."""

    name: str = ""
    """Names the tenant in the scheduler and in logs."""

    keys_sha256: tuple[str, ...] = ()
    """SHA-256 of each of the owner's keys, in hex."""

    admin: bool = False
    """Whether the owner may use the routes that are for the operator."""

    weight: Share = 1.0
    """The owner's share of the engine beside those of the others."""

    priority_at_least: Priority = 0
    """The lowest ``priority`` that counts against requests of other accounts."""

    requests_per_minute: Amount | None = None
    """Requests that may be sent, on average and at once."""

    tokens_per_minute: Amount | None = None
    """Limits on tokens of prompts and tokens computed for answers, on average and in a burst."""

    tokens_per_day: Amount | None = None
    """The same over a day."""


ANYBODY = Account()
"""The account of a server without keys."""


class Accounts:
    """All accounts of a server; empty where it is open to anybody."""

    def __init__(self, accounts: Iterable[Account]) -> None:
        self.all = tuple(accounts)
        self._digests = [(bytes.fromhex(key), account) for account in self.all for key in account.keys_sha256]

    def find(self, key: bytes) -> Account | None:
        """The owner of a key. All keys are compared, each in constant time."""
        given = hashlib.sha256(key).digest()
        found = [account for known, account in self._digests if hmac.compare_digest(given, known)]
        return found[0] if found else None


def read_accounts(keys: Iterable[str], file: str | None, admin_keys: Iterable[str] = ()) -> Accounts:
    """The accounts of ``--api-key`` and ``--admin-api-key`` (one for each key) and of a file.

    Raises ``ConfigError`` for an invalid file.

    The file is TOML with a table for each account::

        [alice]
        keys = ["…"]                # or keys_sha256, so that the file holds no secrets
        weight = 2
        priority_at_least = -10     # lowest priority that counts against other accounts
        requests_per_minute = 60
        tokens_per_minute = 100_000
        tokens_per_day = 5_000_000
        admin = true                # may use the operator's routes, such as /sleep
    """
    digests = [_digest(key) for key in keys]
    found = [Account(name=f"key-{digest[:8]}", keys_sha256=(digest,)) for digest in digests]
    found += [Account(name="admin", keys_sha256=(_digest(key),), admin=True) for key in admin_keys]
    if file is not None:
        found += [_account(name, table, file) for name, table in _read(file).items()]
    _check_distinct(found)
    return Accounts(found)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _read(file: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"api-accounts can't be read from {file}: {error}", param="api_accounts") from None


def _account(name: str, table: object, file: str) -> Account:
    where = f"api-accounts, [{name}] in {file}"
    if not _NAME.fullmatch(name) or not isinstance(table, dict):
        raise ConfigError(
            f"{where}: an account is a table whose name has up to 64 letters, digits, dots, dashes and underscores",
            param="api_accounts",
        )
    keys = table.pop("keys", [])
    if not isinstance(keys, list) or not all(isinstance(key, str) and key for key in keys):
        raise ConfigError(f"{where}: keys must be a list of strings, none of them empty", param="api_accounts")
    hashes = [*table.pop("keys_sha256", []), *map(_digest, keys)]
    try:
        account = msgspec.convert({**table, "name": name, "keys_sha256": hashes}, Account)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}", param="api_accounts") from None
    if not account.keys_sha256 or not all(_SHA256.fullmatch(digest) for digest in account.keys_sha256):
        raise ConfigError(
            f"{where}: an account needs keys, or keys_sha256 as 64 lower-case hex digits each", param="api_accounts"
        )
    return account


def _check_distinct(accounts: Iterable[Account]) -> None:
    owners: dict[str, str] = {}
    for account in accounts:
        for digest in account.keys_sha256:
            if owners.setdefault(digest, account.name) != account.name:
                raise ConfigError(
                    f"accounts {owners[digest]} and {account.name} share a key: give each its own", param="api_accounts"
                )

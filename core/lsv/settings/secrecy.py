"""Which settings and variables are secret, by their names."""

from __future__ import annotations

import re

_WORDS = frozenset(
    ("key", "keys", "apikey", "token", "secret", "secrets", "password", "passwd", "passphrase", "credential",
     "credentials", "auth", "authorization")
)  # fmt: skip


def is_secret(name: str) -> bool:
    """Whether a setting or variable of this name holds something secret: ``api_key``, ``HF_TOKEN`` …"""
    return not _WORDS.isdisjoint(re.split(r"[^a-z]+", name.lower()))

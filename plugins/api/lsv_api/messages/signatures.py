"""Signatures of thoughts: whether thoughts that come back are the ones that a model here has had."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import NamedTuple

from lsv_base.errors import BadRequest

SIGNING_KEY = "api.signing_key"
"""The setting with the key. The frontend draws one for all its processes where it is not given."""

_FORM = "lsv1"


class Checked(NamedTuple):
    """Thoughts that came back."""

    text: str
    ours: bool
    """Whether this server's key has signed them. Thoughts that another key signed can't be checked."""


class Signer:
    """Signs thoughts with a key, and checks them.

    A signature is ``lsv1.KEY.MAC``, where ``KEY`` says which key made it. The signature of hidden thoughts ends in
    ``.THOUGHTS``, from which they are restored.
    """

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(b"thinking blocks\0" + secret.encode("utf-8", "surrogateescape")).digest()
        self._name = hashlib.sha256(self._key).hexdigest()[:8]

    def sign(self, text: str, *, hidden: bool = False) -> str:
        """The signature of thoughts; with ``hidden`` it holds them."""
        signature = f"{_FORM}.{self._name}.{self._mac(text)}"
        return f"{signature}.{_encode(text.encode())}" if hidden else signature

    def check(self, text: str, signature: str, where: str) -> Checked:
        """The thoughts of a block, from its text and its signature.

        Raises ``BadRequest`` if this server's key signed other thoughts; ``where`` names the block.
        """
        form, name, mac, *rest = (*signature.split("."), "", "")
        if (form, name) != (_FORM, self._name):
            return Checked(text, ours=False)
        hidden = rest[0]
        told = text if text or not hidden else _decode(hidden)
        if told is None or not hmac.compare_digest(self._mac(told), mac):
            raise BadRequest(
                f"{where}: Invalid `signature` in `thinking` block: its text is not the one that this server signed; "
                "send the block as it came, or leave it out",
                param=f"{where}.signature",
            )
        return Checked(told, ours=True)

    def _mac(self, text: str) -> str:
        return _encode(hmac.digest(self._key, text.encode("utf-8", "surrogatepass"), "sha256"))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> str | None:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None

"""The format of a file: a header with a checksum, then the content.

    8 bytes    "lsv-kv" and the version of this form, little endian
    16 bytes   ``Site.identity``
    64 bytes   the content's name, with zeros behind it
    8 bytes    how long the content is
    32 bytes   HMAC-SHA256 of all of this and the content, with the secret of the machines (LSV_CLUSTER_KEY), if any

All numbers are little endian. A content begins at byte 128. Without a secret the checksum only detects damage: any
process that can write to the folder can create a valid file.
"""

from __future__ import annotations

import hmac
import struct

_MAGIC = b"lsv-kv"
_VERSION = 2
_HEADER = struct.Struct("<6sH16s64sQ")
_SUM = 32
SIZE = _HEADER.size + _SUM


def pack(identity: bytes, key: bytes, content: memoryview, secret: bytes) -> bytes:
    """The header of a content."""
    about = _HEADER.pack(_MAGIC, _VERSION, identity, key, len(content))
    return about + _checksum(about, content, secret)


def find_fault(header: bytes, identity: bytes, key: bytes, content: memoryview, secret: bytes) -> str | None:
    """Why a file with this header and content is not what was asked for; None if it is."""
    if len(header) < SIZE:
        return "it ends in its header"
    about = header[: _HEADER.size]
    magic, version, of, name, size = _HEADER.unpack(about)
    if magic != _MAGIC:
        return "it is of another kind"
    if version != _VERSION:
        return f"it has form {version}, and {_VERSION} is read"
    if of != identity or name != key.ljust(len(name), b"\0"):
        return "it is of something else"
    if size != len(content):
        return f"it says that {size} bytes follow, and {len(content)} are needed"
    if not hmac.compare_digest(header[_HEADER.size : SIZE], _checksum(about, content, secret)):
        return "its checksum is another"
    return None


def _checksum(about: bytes, content: memoryview, secret: bytes) -> bytes:
    found = hmac.new(secret, about, "sha256")
    found.update(content)
    return found.digest()

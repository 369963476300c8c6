"""The form of a file: what it is of, a checksum, and the content.

    8 bytes    "lsv-kv" and the version of this form, little endian
    16 bytes   ``Site.identity``
    64 bytes   the content's name, with zeros behind it
    8 bytes    how long the content is
    4 bytes    CRC-32 of the content
    28 bytes   zeros

All numbers are little endian. A content begins at byte 128.
"""

from __future__ import annotations

import struct
import zlib

_MAGIC = b"lsv-kv"
_VERSION = 1
_HEADER = struct.Struct("<6sH16s64sQI28x")
SIZE = _HEADER.size


def pack(identity: bytes, key: bytes, content: memoryview) -> bytes:
    """The header of a content."""
    return _HEADER.pack(_MAGIC, _VERSION, identity, key, len(content), zlib.crc32(content))


def find_fault(header: bytes, identity: bytes, key: bytes, content: memoryview) -> str | None:
    """Why a file with this header and content is not what was asked for; None if it is."""
    if len(header) < SIZE:
        return "it ends in its header"
    magic, version, of, name, size, checksum = _HEADER.unpack(header)
    if magic != _MAGIC:
        return "it is of another kind"
    if version != _VERSION:
        return f"it has form {version}, and {_VERSION} is read"
    if of != identity or name != key.ljust(len(name), b"\0"):
        return "it is of something else"
    if size != len(content):
        return f"it says that {size} bytes follow, and {len(content)} are needed"
    if checksum != zlib.crc32(content):
        return "its checksum is another"
    return None

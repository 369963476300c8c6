"""From a reference to encoded bytes: inside the request, in a file, or on another host."""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lsv.media.content_parts import Reference
from lsv.media.items import Encoded
from lsv.media.options import MediaOptions
from lsv_base.errors import BadRequest
from lsv_multimodal.fetching.http import Fetcher

_DATA = "data:"
_HEAD = 1024
"""Characters in which a URL's scheme and a media type end; the payload follows, which nobody wants to copy for that."""

_NAMED = 200
"""Characters of the longest path that an error repeats."""


class Sources:
    """Reads what references name, as far as the operator allows. One event loop uses it."""

    def __init__(self, options: MediaOptions, fetcher: Fetcher | None = None) -> None:
        self._options = options
        self._fetcher = fetcher or Fetcher(options.domains, options.limits.bytes)

    async def read(self, reference: Reference) -> Encoded:
        """Raises ``BadRequest`` naming the part."""
        try:
            return await self._read(reference)
        except BadRequest as error:
            raise BadRequest(f"{reference.where}: {error.message}", param=reference.where) from None

    async def close(self) -> None:
        await self._fetcher.close()

    async def _read(self, reference: Reference) -> Encoded:
        if reference.base64:
            return self._inline(reference.base64)
        scheme = reference.url[:_HEAD].partition(":")[0].lower()
        if scheme == "data":
            return self._inline(_payload(reference.url))
        if scheme == "file":
            return Encoded(await asyncio.to_thread(self._file, reference.url))
        if scheme in ("http", "https"):
            seconds = self._options.fetch_seconds[reference.modality]
            return Encoded(await self._fetcher.fetch(reference.url, seconds))
        raise BadRequest("the URL must begin with data:, http:, https: or file:")

    def _inline(self, text: str | bytes) -> Encoded:
        self._check_size(len(text) * 3 // 4)
        if not text.isascii():
            raise BadRequest("base64 is ASCII text")
        return Encoded(text.encode("ascii") if isinstance(text, str) else text, base64=True)

    def _file(self, url: str) -> bytes:
        """A regular file inside the allowed folder, after symbolic links are resolved."""
        parts = urlsplit(url)
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or "\0" in path or not path.startswith("/"):
            raise BadRequest("a file: URL must hold an absolute path, such as file:///srv/media/cat.png")
        if self._options.folder is None:
            named = os.path.dirname(path)
            wanted = shlex.quote(named) if named.isprintable() and len(named) <= _NAMED else "FOLDER"
            raise BadRequest(f"files are not read here: start with --allowed-local-media-path {wanted}")
        folder = Path(self._options.folder).resolve()
        try:
            real = Path(path).resolve(strict=True)
        except (OSError, RuntimeError):
            real = None
        if real is None or not real.is_relative_to(folder):
            raise BadRequest("the folder of --allowed-local-media-path has no such file")
        return self._read_regular(real)

    def _read_regular(self, path: Path) -> bytes:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise BadRequest("only regular files are read")
                self._check_size(status.st_size)
                return file.read(self._options.limits.bytes)
        except OSError as cause:
            raise BadRequest(f"the file can't be read: {cause.strerror}") from None

    def _check_size(self, size: int) -> None:
        limit = self._options.limits.bytes
        if size > limit:
            raise BadRequest(f"the item has more than {limit / (1 << 20):g} MiB (--max-media-mb)")


def _payload(url: str) -> str:
    """The base64 text of a data URL (RFC 2397). Its media type counts for nothing: the content tells what it is."""
    head, comma, _ = url[len(_DATA) : _HEAD].partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise BadRequest("a data: URL must be base64, such as data:image/png;base64,iVBORw0…")
    return url[len(_DATA) + len(head) + 1 :]

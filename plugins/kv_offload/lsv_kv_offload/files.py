"""One file for each content and rank, in a folder for each identity. A file is whole or not there."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from lsv.settings.cluster_key import read_cluster_key
from lsv.transports import Site, Transport
from lsv_base.errors import ConfigError
from lsv_kv_offload import form
from lsv_kv_offload.bound import SizeBound

_log = logging.getLogger(__name__)

_GIB = 1 << 30
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would be waited for
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FileTransport(Transport):
    """Files of this user alone, which other engines of the user read as well.

    Nobody else's are read: a content is computed with as if the model had said it.
    """

    def __init__(self, site: Site) -> None:
        """Raises ``ConfigError`` for a folder that can't be used."""
        root = Path(str(site.options["kv_offload.path"])).expanduser().absolute()
        self._folder = root / site.identity
        self._identity, self._rank = bytes.fromhex(site.identity), site.rank
        self._secret = read_cluster_key()
        self._bound = SizeBound(root, int(float(site.options["kv_offload.path_gib"] or 0) * _GIB))
        self._told: set[str] = set()
        _open_folder(self._folder)

    def has(self, key: bytes) -> bool:
        try:
            os.stat(self._path(key), follow_symlinks=False)
        except OSError:
            return False
        return True

    def put(self, key: bytes, content: memoryview) -> None:
        path = self._path(key)
        if self.has(key):
            return
        temporary = f"{path}.{secrets.token_hex(8)}.tmp"  # in containers, processes of one number share a folder
        try:
            with suppress(FileExistsError):
                os.mkdir(os.path.dirname(path), 0o700)
            self._write(temporary, [memoryview(form.pack(self._identity, key, content, self._secret)), content])
            os.replace(temporary, path)
        except OSError as error:
            _remove(temporary)
            self._tell("written", f"{path} could not be written: {error.strerror or error}")
            return
        self._bound.note(form.SIZE + len(content))

    def get(self, key: bytes, into: memoryview) -> bool:
        path = self._path(key)
        try:
            descriptor = os.open(path, _READ)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._tell("opened", f"{path} could not be opened: {error.strerror or error}")
            if error.errno == errno.ELOOP:  # a link, in the place of a file that could be kept
                _remove(path)
            return False
        try:
            fault = self._read(descriptor, key, into)
            if fault is None:
                with suppress(OSError):  # a folder may be mounted to be read only
                    os.utime(descriptor)
        except OSError as error:
            fault = error.strerror or str(error)
        finally:
            os.close(descriptor)
        if fault is None:
            return True
        self._tell("read", f"{path} is passed over and removed: {fault}")
        _remove(path)
        return False

    def remove(self, key: bytes) -> None:
        _remove(self._path(key))

    def adopt(self, key: bytes, descriptor: int) -> None:
        """Keep what is in another engine's file on this machine: under a second name where both folders are on one file
        system, which takes no memory and no time, else as a copy.
        """
        path = self._path(key)
        if self.has(key):
            return
        temporary = f"{path}.{secrets.token_hex(8)}.tmp"
        try:
            size = os.fstat(descriptor).st_size
            with suppress(FileExistsError):
                os.mkdir(os.path.dirname(path), 0o700)
            if not _link(descriptor, path):
                content = memoryview(bytearray(size))
                self._write(temporary, [content[: os.preadv(descriptor, [content], 0)]])
                os.replace(temporary, path)
        except OSError as error:
            _remove(temporary)
            self._tell("written", f"{path} could not be written: {error.strerror or error}")
            return
        self._bound.note(size)

    def open(self, key: bytes) -> int | None:
        """A descriptor of the whole file of a content, to be closed; it counts as used. None where there is none."""
        try:
            descriptor = os.open(self._path(key), _READ)
        except OSError:
            return None
        with suppress(OSError):
            os.utime(descriptor)
        return descriptor

    def _path(self, key: bytes) -> str:
        name = key.hex()
        return f"{self._folder}/{name[-2:]}/{name}-{self._rank}"

    def _write(self, path: str, parts: list[memoryview]) -> None:
        descriptor = os.open(path, _WRITE, 0o600)
        try:
            for part in parts:
                while part:
                    part = part[os.write(descriptor, part) :]
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, key: bytes, into: memoryview) -> str | None:
        """Fill ``into``; why what is there is not what was asked for."""
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            return "it is not a file of this user"
        if about.st_size != form.SIZE + len(into):
            return f"it has {about.st_size} bytes and not {form.SIZE + len(into)}"
        header = os.pread(descriptor, form.SIZE, 0)
        done = 0
        while done < len(into):
            count = os.preadv(descriptor, [into[done:]], form.SIZE + done)
            if not count:
                return f"it ends {len(into) - done} bytes early"
            done += count
        return form.find_fault(header, self._identity, key, into, self._secret)

    def _tell(self, what: str, line: str) -> None:
        """Log what is wrong with the first of many files."""
        if what not in self._told:
            self._told.add(what)
            _log.warning("KV cache: %s. Further failures of this kind are not logged", line)


def _link(descriptor: int, path: str) -> bool:
    """Give an open file a second name; whether it has that."""
    try:
        # with a folder given, which an absolute path makes no use of, the link is to what is open
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
    except FileExistsError:
        pass
    except OSError:
        return False
    return True


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _open_folder(folder: Path) -> None:
    """Make it, or find that it is this user's alone; raises ``ConfigError``."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        about = os.stat(folder, follow_symlinks=False)
    except OSError as error:
        raise ConfigError(f"kv_offload_path: {error.strerror}: {error.filename}", param="kv_offload.path") from None
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise ConfigError(
            f"kv_offload_path: {folder} must be a folder that belongs to this user and is not writable by others",
            param="kv_offload.path",
        )

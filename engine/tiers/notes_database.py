"""The file behind Notes: opened when first needed, shared with other processes, never a reason for anything to fail.

Owns one SQLite connection, its schema, and what happens when the file can't be used: an error costs the answer or the
write, is said once in the log, and is over when a write works again. A damaged file is removed and begun anew. Does not
know what the tables mean. Any thread, one at a time; a call may wait for the disk and, for a moment, for another
process, so the engine's thread makes none.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from models.errors import shown

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

SCHEMA_VERSION = 1
_BUSY_S = 0.5
_SIDE_FILES = ("-wal", "-shm", "-journal")
# Python can't decode what SQLite says of damage if it quotes the damaged bytes.
_DAMAGE_SHOWS_AS = (sqlite3.DatabaseError, UnicodeDecodeError)
_SCHEMA = """
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE written (day INTEGER PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TABLE models (fingerprint BLOB PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE files (path BLOB PRIMARY KEY, identity TEXT NOT NULL, digest BLOB NOT NULL);
CREATE TABLE owners (chat BLOB, fingerprint BLOB, key BLOB, PRIMARY KEY (chat, fingerprint, key)) WITHOUT ROWID;
CREATE INDEX owners_by_key ON owners (fingerprint, key);
CREATE TABLE answers (fingerprint BLOB, text BLOB, tokens BLOB NOT NULL, used REAL NOT NULL,
                      PRIMARY KEY (fingerprint, text));
CREATE INDEX answers_by_age ON answers (used);
CREATE TABLE answer_chats (chat BLOB, fingerprint BLOB, text BLOB,
                           PRIMARY KEY (chat, fingerprint, text)) WITHOUT ROWID;
CREATE INDEX answer_chats_by_answer ON answer_chats (fingerprint, text);
"""


class NotesDatabase:
    """A connection that heals. Nothing is opened or made before the first call that needs it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None  # of the file that is or was last opened
        self._closed = False
        self._trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why writes are dropped at present, or None."""
        return self._trouble

    def read(self, work: Work[T], empty: T) -> T:
        """What `work` reads, or `empty` where there is no file, or none that can be read. Makes no file."""
        return self._guarded(work, empty, writes=False, makes=False)

    def write(self, work: Work[T], empty: T, *, makes: bool = True) -> T:
        """What `work` returns once all that it wrote is kept; `empty` where nothing was. `makes` a missing file."""
        return self._guarded(work, empty, writes=True, makes=makes)

    def close(self) -> None:
        """Release the file. Later calls find nothing and keep nothing. Idempotent."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def _guarded(self, work: Work[T], empty: T, *, writes: bool, makes: bool) -> T:
        with self._lock:
            if self._closed:
                return empty
            try:
                result = self._attempt(work, empty, writes, makes)
            except (*_DAMAGE_SHOWS_AS, sqlite3.Error, OSError) as error:
                self._disconnect()
                self._say(error)
                return empty
            if writes:
                self._say_healed()
            return result

    def _attempt(self, work: Work[T], empty: T, writes: bool, makes: bool) -> T:
        try:
            return self._run(work, empty, writes, makes)
        except _DAMAGE_SHOWS_AS as error:
            if not _is_damage(error, self._path):
                raise
            self._begin_anew(error)
        return self._run(work, empty, writes, makes)

    def _run(self, work: Work[T], empty: T, writes: bool, makes: bool) -> T:
        connection = self._connected(makes=makes)
        if connection is None:
            return empty
        return _in_transaction(connection, work) if writes else work(connection)

    def _connected(self, *, makes: bool) -> sqlite3.Connection | None:
        """The connection to the file that lies there now: another process may have begun it anew."""
        identity = _identity(self._path)
        if self._connection is not None and identity == self._identity:
            return self._connection
        self._disconnect()
        if identity is None:
            if not makes:
                return None
            _make(self._path)
            identity = _identity(self._path)
        self._identity = identity
        self._connection = sqlite3.connect(self._path, _BUSY_S, isolation_level=None, check_same_thread=False)
        _prepare(self._connection)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _begin_anew(self, error: Exception) -> None:
        self._disconnect()
        if _identity(self._path) != self._identity:
            return  # another process was quicker
        reason = shown(str(error))  # may quote what the file holds
        logger.warning("%s was damaged (%s) and is begun anew; conversations are not affected.", self._path, reason)
        for ending in (*_SIDE_FILES, ""):
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)

    def _say(self, error: Exception) -> None:
        if self._trouble is None:
            logger.warning("%s can't be used: %s. Chats go on without it.", self._path, shown(str(error)))
        self._trouble = str(error)

    def _say_healed(self) -> None:
        if self._trouble is not None:
            logger.info("%s can be used again.", self._path)
        self._trouble = None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _make(path: Path) -> None:
    """An empty file that only this account can read; SQLite gives its side files the same permissions."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _prepare(connection: sqlite3.Connection) -> None:
    """Settings of this connection, and the tables where there are none. Raises sqlite3.DatabaseError."""
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA secure_delete=ON")  # what is forgotten is overwritten, not only unlinked
    if _version(connection) != SCHEMA_VERSION:
        _in_transaction(connection, _create_tables)


def _create_tables(connection: sqlite3.Connection) -> None:
    version = _version(connection)
    if version == SCHEMA_VERSION:
        return  # another process was quicker
    [num_tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version or num_tables:
        raise _OtherVersion(f"it has version {version}, not {SCHEMA_VERSION}")
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    [version] = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _in_transaction(connection: sqlite3.Connection, work: Work[T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # a full disk has rolled back by itself
            connection.execute("ROLLBACK")
        raise
    return result


class _OtherVersion(sqlite3.DatabaseError):
    """The file is sound but not ours."""


def _is_damage(error: Exception, path: Path) -> bool:
    """Whether the file is at fault.

    SQLITE_ERROR counts, since our statements fit our schema: tables that refuse them were altered. So does a file that
    says of itself that it must not be written, where the system has nothing against it.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_READONLY:
        return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    return isinstance(error, _OtherVersion | UnicodeDecodeError) or code & 0xFF in (
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )

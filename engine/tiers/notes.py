"""What the stored conversations' keeper writes down beside them: counts, owners, answers, names, digests of files.

Owns the meaning of <root>/notes.db, which processes and models share; engine/tiers/notes_database.py owns the file. No
call raises for what the disk does: a read gives the empty answer and a write is dropped. Does not know kv blocks, only
their keys. Worker threads and the command line's main thread; never the engine's thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from engine.tiers.notes_database import NotesDatabase

T = TypeVar("T")
FILE_NAME = "notes.db"
Counter = Literal["hits", "misses", "restored_blocks", "restored_tokens"]

_MAX_ANSWERS = 4096
_MAX_ANSWER_TOKENS = 1 << 18  # of one answer
_MAX_ANSWERS_BYTES = 16 << 20  # of all answers' tokens
_MAX_FILES = 1024
_MAX_MODELS = 1024
_DAY_S = 86_400
_DAYS_KEPT = 30
_TOUCH_S = 60.0  # an answer's last use is known to this precision
_MAX_FREE_PAGES = 256  # of 4 KB
_NO_CHAT = b""


class Notes:
    """The notes of one folder. Nothing is opened before it is needed, and reading makes no file."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._database = NotesDatabase(root / FILE_NAME)
        self._clock = clock

    @property
    def trouble(self) -> str | None:
        """Why writes are dropped at present, or None."""
        return self._database.trouble

    def close(self) -> None:
        """Release the file. Later calls find nothing and keep nothing. Idempotent."""
        self._database.close()

    # -- counts

    def add(self, counter: Counter, n: int = 1) -> None:
        """Count `n` more, over all processes and restarts."""
        self._write(
            "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
            (counter, n),
        )

    def counters(self) -> dict[str, int]:
        """All counts that are not zero, by name."""
        rows = self._rows("SELECT name, value FROM counters")
        return {name: value for name, value in rows if isinstance(name, str) and isinstance(value, int)}

    def note_written(self, num_bytes: int) -> None:
        """Count bytes that were written to disk today; a day is one of UTC."""
        today = self._today()

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO written VALUES (?, ?) ON CONFLICT (day) DO UPDATE SET bytes = bytes + excluded.bytes",
                (today, num_bytes),
            )
            connection.execute("DELETE FROM written WHERE day NOT BETWEEN ? AND ?", (today - _DAYS_KEPT, today))

        self._database.write(work, None)

    def written_today(self) -> int:
        """Bytes that all processes wrote today."""
        rows = self._rows("SELECT bytes FROM written WHERE day = ?", (self._today(),))
        return next((value for (value,) in rows if isinstance(value, int)), 0)

    # -- owners of kv blocks

    def own(self, chat: str, fingerprint: bytes, keys: Iterable[bytes]) -> None:
        """Say that a chat uses these kv blocks of a model."""
        rows = [(_chat(chat), fingerprint, key) for key in keys]
        if rows:
            self._write_many("INSERT OR IGNORE INTO owners VALUES (?, ?, ?)", rows)

    def disown(self, fingerprint: bytes, keys: Iterable[bytes]) -> None:
        """Drop all chats' claims to kv blocks that are gone, so that the notes grow no faster than the folder."""
        rows = [(fingerprint, key) for key in keys]
        if rows:
            self._write_many("DELETE FROM owners WHERE fingerprint = ? AND key = ?", rows)

    def forget_chat(self, chat: str) -> dict[bytes, list[bytes]]:
        """Drop a chat's claims and answers; returns, by fingerprint, the keys that no other chat owns."""
        return self._forget(partial(_forget_chat, _chat(chat)), {})

    def forget_all(self) -> None:
        """Drop everything but the bytes written of late: the drive's budget doesn't begin anew."""
        self._forget(_forget_all, None)

    # -- answers

    def remember_answer(self, fingerprint: bytes, chat: str | None, text: str, tokens: Sequence[int]) -> None:
        """Keep the tokens (u32) of an answer, found by its text's hash; of two with one text the newer counts."""
        if not text or not tokens or len(tokens) > _MAX_ANSWER_TOKENS:
            return
        found_by = (fingerprint, _text_hash(text))
        row = (*found_by, struct.pack(f"<{len(tokens)}I", *tokens), self._clock())

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", row)
            connection.execute("INSERT OR IGNORE INTO answer_chats VALUES (?, ?, ?)", (_chat(chat), *found_by))
            _drop_old_answers(connection)

        self._database.write(work, None)

    def recall_answer(self, fingerprint: bytes, text: str) -> tuple[int, ...] | None:
        """The tokens of an answer with this text. They come from a file: check that they spell the text."""
        found_by = (fingerprint, _text_hash(text))
        rows = self._rows("SELECT tokens, used FROM answers WHERE fingerprint = ? AND text = ?", found_by)
        for tokens, used in rows:
            if isinstance(tokens, bytes) and tokens and len(tokens) % 4 == 0:
                now = self._clock()
                if not isinstance(used, float) or abs(now - used) > _TOUCH_S:
                    self._write("UPDATE answers SET used = ? WHERE fingerprint = ? AND text = ?", (now, *found_by))
                return struct.unpack(f"<{len(tokens) // 4}I", tokens)
        return None

    # -- models and their files

    def note_model(self, fingerprint: bytes, name: str) -> None:
        """Remember what people call the model with this fingerprint."""
        self._write_newest("models", _MAX_MODELS, (fingerprint, name.encode("utf-8", "replace").decode()))

    def models(self) -> dict[bytes, str]:
        """Names by fingerprint."""
        rows = self._rows("SELECT fingerprint, name FROM models")
        return {key: name for key, name in rows if isinstance(key, bytes) and isinstance(name, str)}

    def note_file_digest(self, path: bytes, identity: str, digest: bytes) -> None:
        """Remember the digest of a file's content as long as `identity` (size, times, inode) stays what it is."""
        self._write_newest("files", _MAX_FILES, (path, identity, digest))

    def file_digest(self, path: bytes, identity: str) -> bytes | None:
        """The digest noted for the file at `path` (os.fsencode) when it had this identity."""
        rows = self._rows("SELECT digest FROM files WHERE path = ? AND identity = ?", (path, identity))
        return next((digest for (digest,) in rows if isinstance(digest, bytes)), None)

    # -- the database

    def _today(self) -> int:
        return int(self._clock() // _DAY_S)

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        empty: list[tuple[object, ...]] = []
        return self._database.read(lambda connection: connection.execute(query, values).fetchall(), empty)

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        self._write_many(statement, [values])

    def _write_many(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        self._database.write(lambda connection: connection.executemany(statement, rows), None)

    def _write_newest(self, table: str, limit: int, row: tuple[object, ...]) -> None:
        """Put a row in place of one with its key, as the newest; the oldest beyond `limit` go."""
        marks = ", ".join("?" * len(row))

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", row)
            connection.execute(
                f"DELETE FROM {table} WHERE rowid IN"
                f" (SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT -1 OFFSET {limit})"
            )

        self._database.write(work, None)

    def _forget(self, work: Callable[[sqlite3.Connection], T], empty: T) -> T:
        """Forgotten rows are overwritten in the file; the log of writes before it still has them, so it goes too."""
        result = self._database.write(work, empty, makes=False)
        self._database.read(_shrink, None)
        return result


def _chat(chat: str | None) -> bytes:
    return _NO_CHAT if chat is None else b":" + chat.encode("utf-8", "surrogatepass")


def _text_hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).digest()


def _forget_chat(chat: bytes, connection: sqlite3.Connection) -> dict[bytes, list[bytes]]:
    query = """
        SELECT fingerprint, key FROM owners AS mine WHERE chat = ? AND NOT EXISTS (
            SELECT 1 FROM owners WHERE fingerprint = mine.fingerprint AND key = mine.key AND chat <> mine.chat)"""
    alone: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for fingerprint, key in connection.execute(query, (chat,)):
        if isinstance(fingerprint, bytes) and isinstance(key, bytes):
            alone[fingerprint].append(key)
    connection.execute("DELETE FROM owners WHERE chat = ?", (chat,))
    connection.execute("DELETE FROM answer_chats WHERE chat = ?", (chat,))
    _drop_unowned_answers(connection)
    return dict(alone)


def _forget_all(connection: sqlite3.Connection) -> None:
    for table in ("counters", "models", "files", "owners", "answers", "answer_chats"):
        connection.execute(f"DELETE FROM {table}")


def _shrink(connection: sqlite3.Connection) -> None:
    """As far as other users of the file allow at this moment."""
    [num_free] = connection.execute("PRAGMA freelist_count").fetchone()
    with contextlib.suppress(sqlite3.OperationalError):
        if num_free > _MAX_FREE_PAGES:
            connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _drop_unowned_answers(connection: sqlite3.Connection) -> None:
    connection.execute("""
        DELETE FROM answers WHERE NOT EXISTS (
            SELECT 1 FROM answer_chats WHERE fingerprint = answers.fingerprint AND text = answers.text)""")


def _drop_old_answers(connection: sqlite3.Connection) -> None:
    """Keep the bounds; the longest unused go first."""
    [count, size] = connection.execute("SELECT count(*), total(length(tokens)) FROM answers").fetchone()
    if count <= _MAX_ANSWERS and size <= _MAX_ANSWERS_BYTES:
        return
    kept = kept_bytes = 0
    by_age = "SELECT rowid, coalesce(length(tokens), 0) FROM answers ORDER BY used DESC"
    for rowid, length in connection.execute(by_age).fetchall():
        kept_bytes += length
        kept += 1
        if kept > _MAX_ANSWERS or kept_bytes > _MAX_ANSWERS_BYTES:
            connection.execute("DELETE FROM answers WHERE rowid = ?", (rowid,))
    connection.execute("""
        DELETE FROM answer_chats WHERE NOT EXISTS (
            SELECT 1 FROM answers WHERE fingerprint = answer_chats.fingerprint AND text = answer_chats.text)""")

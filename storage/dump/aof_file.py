"""Reads the files of Redis' AOF: the manifest of a directory, and the requests of one file. Bytes
in, requests out, without any I/O of its own.

A file that was being written when its server stopped may end within a request: CutOffError. Any
other fault is a PayloadError. `AofReader.offset` is then where the request begins.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from millstream.errors import PayloadError
from millstream.quoted_words import split_words
from millstream.storage.dump.rdb_file import RdbFile
from millstream.storage.dump.reader import CutOffError, Reader

MANIFEST_SUFFIX = ".manifest"
MANIFEST_MAX_BYTES = 1 << 20
WORDS_MAX = 1 << 20
BULK_MAX_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20
_LINE_MAX_BYTES = 1024
_NUMBER_MAX_BYTES = 24
_ARRAY, _BULK, _COMMENT = b"*$#"
# Facts of an RDB that begins an AOF: of Redis 7, and of the versions before.
_MARKS = (b"aof-base", b"aof-preamble")


class AofFile(NamedTuple):
    """A file that the manifest names: of the type "b" (base), "i" (increment) or "h" (history)."""

    name: str
    seq: int
    kind: str


def parse_manifest(text: bytes) -> list[AofFile]:
    """The files to load: the base if there is one, then the increments in order. PayloadError for
    anything that Redis would refuse."""
    found: list[AofFile] = []
    for number, line in enumerate(text.decode("utf-8", "surrogateescape").split("\n"), 1):
        if not line and number > text.count(b"\n"):
            break  # after the last line
        if line.startswith("#"):
            continue
        found.append(_manifest_line(line, number))
    bases = [file for file in found if file.kind == "b"]
    increments = [file for file in found if file.kind == "i"]
    if len(bases) > 1:
        raise PayloadError("it names two base files")
    if not bases and not increments:
        raise PayloadError("it names no file")
    for before, after in pairwise(increments):
        if after.seq <= before.seq:
            raise PayloadError(f"the numbers of its increments do not increase at {after.name!r}")
    return [*bases, *increments]


def _manifest_line(line: str, number: int) -> AofFile:
    """``file NAME seq N type T``, and pairs that newer versions have added."""
    try:
        words = split_words(line.encode("utf-8", "surrogateescape"))
        pairs = dict(zip(words[::2], words[1::2], strict=True))
        name = pairs[b"file"].decode("utf-8", "surrogateescape")
        seq, kind = int(pairs[b"seq"]), pairs[b"type"].decode("ascii")
    except (ValueError, KeyError):
        raise PayloadError(f"its line {number} is not understood") from None
    if not name or "/" in name or name in (".", ".."):
        raise PayloadError(f"its line {number} names a path, not a file of its directory")
    if seq <= 0 or kind not in ("b", "i", "h"):
        raise PayloadError(f"its line {number} has an unknown type or number")
    return AofFile(name, seq, kind)


def begins_aof(reader: Reader) -> bool:
    """True if an AOF follows: requests, or an RDB that Redis wrote as the beginning of an AOF.
    Nothing is taken from the reader."""
    reader.mark()
    try:
        if reader.byte() in (_ARRAY, _COMMENT):
            return True
        reader.rewind()
        file = RdbFile(reader)
        file.begin()
        next(file.key_heads(), None)
        return any(file.facts.get(mark) == b"1" for mark in _MARKS)
    except PayloadError:
        return False  # reading it shows what is wrong
    finally:
        reader.rewind()
        reader.unmark()


class AofReader:
    """The requests of one file. `read` returns the next bytes, at most as many as it is asked for,
    and b"" at the end; the first byte is at `offset` of the file."""

    def __init__(self, read: Callable[[int], bytes], offset: int = 0) -> None:
        self.offset = offset  # where the last request begins
        self._read = read
        self._data = b""
        self._at = 0
        self._before = offset  # bytes of the file before `data`

    @property
    def read_bytes(self) -> int:
        """The size of the file as far as it was read."""
        return self._before + len(self._data)

    def next(self) -> list[bytes] | None:
        """The words of the next request; None at the end. Annotations are passed over."""
        while True:
            self.offset = self._before + self._at
            if self._at >= len(self._data) and not self._fill(1):
                return None
            if self._data[self._at] != _COMMENT:
                return self._request()
            self._line(_LINE_MAX_BYTES, b"\n")

    def _request(self) -> list[bytes]:
        count = self._number(_ARRAY, WORDS_MAX)
        if not count:
            raise PayloadError("a request has no words")
        return [self._word() for _ in range(count)]

    def _word(self) -> bytes:
        size = self._number(_BULK, BULK_MAX_BYTES)
        if len(self._data) - self._at < size + 2 and not self._fill(size + 2):
            raise CutOffError("it ends within a request")
        start, self._at = self._at, self._at + size + 2
        if self._data[start + size : self._at] != b"\r\n":
            raise PayloadError("a word is longer than its length")
        return self._data[start : start + size]

    def _number(self, mark: int, most: int) -> int:
        """A line with a mark and a number."""
        line = self._line(_NUMBER_MAX_BYTES, b"\r\n")
        digits = line[1:]
        if line[:1] != bytes((mark,)) or not digits.isdigit() or int(digits) > most:
            raise PayloadError(f"{line!r} in place of a number of words or bytes")
        return int(digits)

    def _line(self, most_bytes: int, end: bytes) -> bytes:
        """The bytes up to the end of a line, which is taken."""
        while True:
            found = self._data.find(end, self._at, self._at + most_bytes)
            if found >= 0:
                start, self._at = self._at, found + len(end)
                return self._data[start:found]
            have = len(self._data) - self._at
            if have >= most_bytes:
                raise PayloadError(
                    f"{self._data[self._at : self._at + 40]!r} in place of a request"
                )
            if not self._fill(have + 1):
                self._require_line_begins(have)
                raise CutOffError("it ends within a request")

    def _require_line_begins(self, have: int) -> None:
        """PayloadError if what is left at the end is not the beginning of a line."""
        rest = self._data[self._at : self._at + have]
        if rest and rest[0] not in (_ARRAY, _BULK, _COMMENT):
            raise PayloadError(f"{rest[:40]!r} in place of a request")

    def _fill(self, wanted: int) -> bool:
        """Get at least this number of unread bytes; False if there are not as many."""
        pieces = [self._data[self._at :]]
        have = len(pieces[0])
        while have < wanted:
            piece = self._read(_PIECE_BYTES)
            if not piece:
                break
            pieces.append(piece)
            have += len(piece)
        self._before += self._at
        self._at = 0
        self._data = b"".join(pieces)
        return have >= wanted

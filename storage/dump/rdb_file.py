"""Reads a file of Redis' RDB format: bytes in, keys out, without any I/O of its own.

`RdbFile.key_heads` yields the head of each key. Its value is then read with the same reader, or
passed over with `skip`. Everything between keys is read here: facts about the file, functions,
metadata of modules. A file of an unknown version is read: only an unknown type or opcode ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from millstream.errors import PayloadError
from millstream.storage.dump.reader import CutOffError, Reader
from millstream.storage.dump.skipping import (
    KEY_METADATA,
    module_name,
    skip_key_metadata,
    skip_many,
    skip_module_value,
    skip_stream,
)
from millstream.storage.dump.stream_reading import is_stream_type

MAGIC_BYTES = 9
WITH_CHECKSUM = 5  # the version that introduced it
STRING = 0
MODULE = 7

_TEMPLATE, _SLOT, _FUNCTION, _OLD_FUNCTION, _MODULE_AUX = 242, 244, 245, 246, 247
_IDLE, _FREQUENCY, _AUX, _SIZES, _EXPIRY_MS, _EXPIRY_S, _DATABASE, _EOF = range(248, 256)
_MAGICS = {b"REDIS": 1, b"VALKEY": 80}  # and the first version
_COMPRESSED_MAGIC = b"VKCS"

# Strings, each a whole value or a part of one: lists, sets, sorted sets and hashes in one piece.
_ONE_STRING = (9, 10, 11, 12, 13, 16, 17, 20, 23, 30)
_NAMES = {
    **dict.fromkeys((1, 10, 14, 18), "list"),
    **dict.fromkeys((2, 11, 20), "set"),
    **dict.fromkeys((3, 5, 12, 17), "zset"),
    **dict.fromkeys((4, 9, 13, 16), "hash"),
}
_REDIS_NAMES = {**dict.fromkeys((22, 23, 24, 25, 29, 30, 31, 32), "hash"), 28: "array"}
_VALKEY_NAMES = {22: "hash"}


class UnknownPartError(CutOffError):
    """A type or opcode that is not known, so nothing after it can be read."""


class NotRdbError(PayloadError):
    """The bytes are not an RDB file that can be read."""


@dataclass(slots=True)
class KeyHead:
    """A key whose value comes next. `expires_ms` is a Unix time."""

    database: int
    name: bytes
    kind: int
    expires_ms: int | None


@dataclass
class Passed:
    """Something that was passed over: what it is, a name, and its bytes in the file."""

    what: str
    name: bytes
    size_bytes: int


@dataclass
class RdbFile:
    """One RDB file. `facts` has its aux fields; `tell_passed` gets what is between keys and has no
    place here."""

    reader: Reader
    tell_passed: Callable[[Passed], None] = lambda passed: None
    version: int = 0
    is_valkey: bool = False
    facts: dict[bytes, bytes] = field(default_factory=dict)
    key: KeyHead | None = None  # the one that is being read
    keys_read: int = 0
    stored_checksum: int | None = None
    checksum: int = 0
    _database: int = 0
    _templates: dict[int, int] = field(default_factory=dict)

    # ------------------------------------------------------------ the file

    def begin(self) -> None:
        """Read the head. NotRdbError if it is another file."""
        try:
            head = self.reader.take(MAGIC_BYTES)
        except CutOffError:
            raise NotRdbError("it is not an RDB file: it is too short") from None
        if head.startswith(_COMPRESSED_MAGIC):
            raise NotRdbError(
                "it is compressed as a whole (VKCS, Valkey 9.2), which is not supported: save it"
                " with `rdbcompression yes` instead"
            )
        for magic, first in _MAGICS.items():
            digits = head[len(magic) :]
            if head.startswith(magic) and digits.isdigit() and int(digits) >= first:
                self.version, self.is_valkey = int(digits), magic == b"VALKEY"
                return
        raise NotRdbError("it is not an RDB file: it does not begin with REDIS or VALKEY")

    @property
    def writer(self) -> str:
        """The program and version that wrote the file."""
        for fact, program in ((b"valkey-ver", "Valkey"), (b"redis-ver", "Redis")):
            if fact in self.facts:
                return f"{program} {self.facts[fact].decode('utf-8', 'replace')}"
        program = "Valkey" if self.is_valkey else "Redis"
        return f"a {program} that did not write its version"

    @property
    def is_checksum_right(self) -> bool:
        return self.stored_checksum in (None, 0, self.checksum)

    def key_heads(self) -> Iterator[KeyHead]:
        """The heads of all keys; the value of each must be read or skipped before the next.

        Reads the checksum at the end, which `is_checksum_right` compares."""
        expires_ms: int | None = None
        while True:
            self.key = None
            offset = self.reader.offset
            kind = self.reader.byte()
            if kind == _EXPIRY_MS:
                expires_ms = max(self.reader.signed64(), 0)
            elif kind == _EXPIRY_S:
                expires_ms = 1000 * int.from_bytes(self.reader.take(4), "little")
            elif kind == _EOF:
                self._end()
                return
            elif kind >= _TEMPLATE:
                self._read_between(kind, offset)
            else:
                self._require_known(kind, offset)
                name = self.reader.string()
                self.key = KeyHead(self._database, name, kind, expires_ms)
                yield self.key
                self.keys_read += 1
                expires_ms = None

    def _end(self) -> None:
        self.checksum = self.reader.checksum
        if self.version >= WITH_CHECKSUM:
            self.stored_checksum = int.from_bytes(self.reader.take(8), "little")

    def _read_between(self, kind: int, offset: int) -> None:
        """Read what is not a key."""
        reader = self.reader
        if kind == _DATABASE:
            self._database = reader.length()
        elif kind == _AUX:
            name = reader.string()
            self.facts[name] = reader.string()
        elif kind in (_SIZES, _SLOT):
            for _ in range(2 if kind == _SIZES else 3):
                reader.length()
        elif kind == _IDLE:
            reader.length()
        elif kind == _FREQUENCY:
            reader.byte()
        elif kind == _FUNCTION:
            code = reader.string()
            self._tell("functions", library_name(code), offset)
        elif kind == _MODULE_AUX:
            name = module_name(reader.length()).encode()
            skip_module_value(reader)
            self._tell("module data", name, offset)
        elif kind == KEY_METADATA and not self.is_valkey:
            for class_name in skip_key_metadata(reader):
                self._tell("key metadata", class_name.encode(), offset)
        elif kind == _TEMPLATE and not self.is_valkey:
            number, count = reader.length(), reader.length()
            self._skip_strings(count)
            self._templates[number] = count
        else:
            raise self._unknown("opcode", kind, offset)

    def _tell(self, what: str, name: bytes, offset: int) -> None:
        self.tell_passed(Passed(what, name, self.reader.offset - offset))

    def _unknown(self, what: str, number: int, offset: int) -> UnknownPartError:
        return UnknownPartError(
            f"the {what} {number} at offset {offset} is not known; {self.writer} wrote it, with"
            f" version {self.version} of the format"
        )

    # ------------------------------------------------------------ values

    def _require_known(self, kind: int, offset: int) -> None:
        is_ours = self._is_stream(kind) or kind in (STRING, MODULE)
        if not is_ours and self.name_of(kind) is None:
            raise self._unknown("type", kind, offset)

    def _is_stream(self, kind: int) -> bool:
        return is_stream_type(kind, self.is_valkey)

    def is_stream(self) -> bool:
        """True if the value of the current key is a stream."""
        assert self.key is not None
        return self._is_stream(self.key.kind)

    def name_of(self, kind: int) -> str | None:
        """The name of a type of which this server has no values; None if the type is not known."""
        return _NAMES.get(kind) or (_VALKEY_NAMES if self.is_valkey else _REDIS_NAMES).get(kind)

    def skip(self) -> Passed:
        """Pass over the value of the current key, which is of any type."""
        assert self.key is not None
        kind, start = self.key.kind, self.reader.offset
        if kind == MODULE:
            what = module_name(self.reader.length())
            skip_module_value(self.reader)
        elif kind == STRING:
            what = "string"
            self.reader.skip_string()
        elif self._is_stream(kind):
            what = "stream"
            skip_stream(self.reader, kind)
        else:
            what = self.name_of(kind) or ""
            self._skip_other(kind)
        return Passed(what, self.key.name, self.reader.offset - start)

    def _skip_strings(self, count: int) -> None:
        if count > self.reader.left:
            raise CutOffError("it is cut off")
        for _ in range(count):
            self.reader.skip_string()

    def _skip_other(self, kind: int) -> None:
        reader = self.reader
        if kind in _ONE_STRING:
            reader.skip_string()
        elif kind == 25:  # a hash whose fields expire, in one piece, after the first expiry
            reader.skip(8)
            reader.skip_string()
        elif kind == 24:
            reader.skip(8)
            self._skip_fields_with_expiry()
        elif kind == 22 and not self.is_valkey:
            self._skip_fields_with_expiry()
        elif kind == 28:
            self._skip_array()
        elif kind == 32:
            number = reader.length()
            if number not in self._templates:
                raise CutOffError(f"a hash has the unknown template {number}")
            self._skip_strings(self._templates[number])
        else:
            self._skip_items(kind)

    def _skip_items(self, kind: int) -> None:
        """A count, and as many items of the same form."""
        reader = self.reader
        count = reader.length()
        for _ in range(count):
            if kind == 18:  # how the piece is stored
                reader.length()
            reader.skip_string()
            if kind in (4, 31) or (kind == 22 and self.is_valkey):
                reader.skip_string()
            if kind == 3:
                self._skip_old_score()
            elif kind == 5 or kind == 22:
                reader.skip(8)
        if kind == 29:
            reader.skip_string()

    def _skip_old_score(self) -> None:
        """A number as text after its length. From 253 on, the length is a special number."""
        size_bytes = self.reader.byte()
        if size_bytes < 253:
            self.reader.skip(size_bytes)

    def _skip_fields_with_expiry(self) -> None:
        for _ in range(self.reader.length()):
            self.reader.length()
            self.reader.skip_string()
            self.reader.skip_string()

    def _skip_array(self) -> None:
        reader = self.reader
        count = reader.length()
        if reader.length():  # whether the place of the next insertion follows
            reader.length()
        for _ in range(count):
            reader.length()
            tag = reader.length()
            if tag in (1, 2):
                skip_many(reader, 1, 8)
            elif tag in (0, 3):
                reader.skip_string()
            else:
                raise CutOffError(f"an array has an element of the unknown kind {tag}")


def library_name(code: bytes) -> bytes:
    """The name in the first line of a library of functions, ``#!lua name=NAME``."""
    head = code[:1024].split(b"\n", 1)[0]
    for word in head.split():
        if word.startswith(b"name="):
            return word[5:]
    return b""

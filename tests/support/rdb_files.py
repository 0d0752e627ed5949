"""RDB files of Redis and Valkey, built from the specification of the format, independently of the
server's code."""

from __future__ import annotations

import struct

from tests.support.payloads import length, text

from millstream.storage.dump.rdb_bytes import crc64

HASH_FIELDS = [(b"f1", b"v1"), (b"f2", b"v2")]


def file(
    *parts: bytes, version: int = 10, magic: bytes = b"REDIS", checksum: int | None = None
) -> bytes:
    """A whole file with these parts; `checksum` replaces the right one."""
    digits = 9 - len(magic)
    body = magic + b"%0*d" % (digits, version) + b"".join(parts) + b"\xff"
    if version < 5:
        return body
    return body + struct.pack("<Q", crc64(body) if checksum is None else checksum)


def aux(name: bytes, value: bytes) -> bytes:
    return b"\xfa" + text(name) + text(value)


def database(number: int) -> bytes:
    return b"\xfe" + length(number)


def key(name: bytes, body: bytes, expires_ms: int | None = None) -> bytes:
    """A key; `body` is a value with its type byte before it, as in a payload."""
    expiry = b"" if expires_ms is None else b"\xfc" + struct.pack("<q", expires_ms)
    return expiry + body[:1] + text(name) + body[1:]


def string(value: bytes) -> bytes:
    return b"\0" + text(value)


def _module(name: str, parts: bytes) -> bytes:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    number = 0
    for letter in name:
        number = number << 6 | letters.index(letter)
    return struct.pack(">BQ", 0x81, number << 10 | 1) + parts + b"\0"


MODULE_PARTS = (
    b"\1\x05" + b"\2" + length(70_000) + b"\3abcd" + b"\4abcdefgh" + b"\5" + text(b"bytes")
)
BLOB = text(b"any bytes at all")
PAIRS = b"".join(text(field) + text(value) for field, value in HASH_FIELDS)
WITH_TTL = b"".join(
    length(ttl) + text(f) + text(v) for ttl, f, v in ((0, b"f1", b"v1"), (77, b"f2", b"v2"))
)

# Every type that has no place here: what it is called, its number, and the bytes of a value.
OTHERS: list[tuple[str, int, bytes]] = [
    ("list", 1, length(2) + text(b"a") + b"\xc0\x07"),
    ("set", 2, length(1) + text(b"a")),
    ("zset", 3, length(3) + text(b"a") + b"\x031.5" + text(b"b") + b"\xfe" + text(b"c") + b"\xfd"),
    ("hash", 4, length(2) + PAIRS),
    ("zset", 5, length(1) + text(b"a") + struct.pack("<d", 1.5)),
    *(("hash", kind, BLOB) for kind in (9, 13, 16)),
    *(("list", kind, BLOB) for kind in (10,)),
    *(("set", kind, BLOB) for kind in (11, 20)),
    *(("zset", kind, BLOB) for kind in (12, 17)),
    ("list", 14, length(2) + BLOB + BLOB),
    ("list", 18, length(2) + length(1) + BLOB + length(2) + BLOB),
    ("ReJSON-RL", 7, _module("ReJSON-RL", MODULE_PARTS)),
]
REDIS_OTHERS: list[tuple[str, int, bytes]] = [
    ("hash", 22, length(2) + WITH_TTL),
    ("hash", 23, BLOB),
    ("hash", 24, struct.pack("<q", 5) + length(2) + WITH_TTL),
    ("hash", 25, struct.pack("<q", 5) + BLOB),
    ("array", 28, length(4) + length(1) + length(9) + length(0) + length(1) + b"eightbyt"
     + length(1) + length(2) + b"eightbyt" + length(2) + length(0) + text(b"x")
     + length(3) + length(3) + text(b"y")),
    ("hash", 30, BLOB),
    ("hash", 32, length(8) + text(b"v1") + text(b"v2")),
]  # fmt: skip
VALKEY_OTHERS: list[tuple[str, int, bytes]] = [
    ("hash", 22, length(1) + text(b"f") + text(b"v") + struct.pack("<q", 99)),
]
TEMPLATE = b"\xf2" + length(8) + length(2) + text(b"f1") + text(b"f2")


def module_data(name: str = "ReJSON-RL") -> bytes:
    """Data of a module that belongs to no key."""
    return b"\xf7" + _module(name, MODULE_PARTS)


def metadata(flags: int) -> bytes:
    """Metadata of a key, of the class BCDE."""
    spec = (0b000001_000010_000011_000100 << 5 | 2) << 3 | flags
    return b"\xf3\1" + struct.pack("<I", spec) + MODULE_PARTS + b"\0"

"""The values of replies, and the bytes of a value."""

from __future__ import annotations

from tests.sim.data import EntryId
from tests.support.resp import Reply

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
OUT_OF_MEMORY = "OOM command not allowed when used memory > 'maxmemory'."

NULL_ARRAY = object()
ANY = object()  # a reply whose text is not predicted

Answer = object


class Status(str):
    """+OK"""


class Pairs(list[Answer]):
    """[key, value] pairs: a map in RESP3."""


class Fields(list[Answer]):
    """A map: a flat array in RESP2."""


class Refused(Exception):
    """The command returns this error."""


class Judged:
    """A reply without predicted bytes: a function checks it."""

    def judge(self, reply: Reply) -> None:
        raise NotImplementedError


OK = Status("OK")


def encoded(answer: Answer, resp: int) -> bytes:
    """A reply's bytes."""
    if answer is None:
        return b"_\r\n" if resp == 3 else b"$-1\r\n"
    if answer is NULL_ARRAY:
        return b"_\r\n" if resp == 3 else b"*-1\r\n"
    if isinstance(answer, Status):
        return b"+%s\r\n" % answer.encode()
    if isinstance(answer, Refused):
        return b"-%s\r\n" % str(answer).encode()
    if isinstance(answer, int):
        return b":%d\r\n" % answer
    if isinstance(answer, bytes):
        return b"$%d\r\n%s\r\n" % (len(answer), answer)
    assert isinstance(answer, list)
    if isinstance(answer, Pairs) and resp == 3:
        words = [word for pair in answer for word in pair]  # type: ignore[attr-defined]
        return b"%%%d\r\n" % len(answer) + b"".join(encoded(one, resp) for one in words)
    if isinstance(answer, Fields) and resp == 3:
        return b"%%%d\r\n" % (len(answer) // 2) + b"".join(encoded(one, resp) for one in answer)
    return b"*%d\r\n" % len(answer) + b"".join(encoded(one, resp) for one in answer)


def dotted(entry_id: EntryId) -> bytes:
    return b"%d.%d" % entry_id


def dashed(entry_id: EntryId) -> bytes:
    return b"%d-%d" % entry_id


def parse_id(text: bytes) -> EntryId:
    ms, _, seq = text.replace(b"-", b".").partition(b".")
    return int(ms), int(seq or 0)

"""The answer of a Redis to PSYNC and the full sync after it, in pieces of any size."""

from __future__ import annotations

import pytest

from millstream.server.replication.records import LinkError
from millstream.server.replication.redis_opening import (
    BeginsAgain,
    Commands,
    Continues,
    RdbEnd,
    RdbPiece,
    RdbSize,
    RedisOpening,
    Refusal,
    SourceEvent,
)

ID = "0123456789abcdef" * 2 + "01234567"
MARK = b"f" * 20 + b"0" * 20
RDB = b"REDIS0010" + b"f" * 25 + b"\r\n$5\r\n" + b"f" * 19


def read(data: bytes, piece_bytes: int) -> list[SourceEvent | Refusal]:
    """The events, with neighbouring pieces joined."""
    opening = RedisOpening()
    found: list[SourceEvent | Refusal] = []
    for at in range(0, len(data), piece_bytes):
        for event in opening.feed(data[at : at + piece_bytes]):
            last = found[-1] if found else None
            if isinstance(event, RdbPiece) and isinstance(last, RdbPiece):
                found[-1] = RdbPiece(last.data + event.data)
            elif isinstance(event, Commands) and isinstance(last, Commands):
                found[-1] = Commands(last.data + event.data)
            else:
                found.append(event)
    return found


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 39, 40, 41, 1000])
def test_a_full_sync_is_read_in_pieces_of_any_size(piece_bytes: int) -> None:
    after = b"*1\r\n$4\r\nPING\r\n"
    begin = b"\n\n+FULLRESYNC %s 77\r\n\n\n" % ID.encode()
    events = [BeginsAgain(ID, 77), RdbSize(len(RDB)), RdbPiece(RDB), RdbEnd(), Commands(after)]
    assert read(begin + b"$%d\r\n" % len(RDB) + RDB + after, piece_bytes) == events
    events[1] = RdbSize(-1)
    assert read(begin + b"$EOF:%s\r\n" % MARK + RDB + MARK + after, piece_bytes) == events
    # A continued stream is never taken for a line.
    assert read(b"+CONTINUE\r\n\n" + after, piece_bytes) == [Continues(""), Commands(b"\n" + after)]
    assert read(b"+CONTINUE %s\r\n" % ID.encode(), piece_bytes) == [Continues(ID)]
    assert read(b"-NOMASTERLINK no\r\n+OK\r\n", piece_bytes) == [Refusal("NOMASTERLINK no")]


@pytest.mark.parametrize(
    "data",
    [
        b"+OK\r\n",
        b"  \t\r\n",
        b"+FULLRESYNC %s\r\n" % ID.encode(),
        b"+FULLRESYNC %s 1 2 3 4\r\n" % ID.encode(),
        b"+FULLRESYNC %s -1\r\n" % ID.encode(),
        b"+CONTINUE x\r\n",
        b"x" * 5000,
        *(
            b"+FULLRESYNC %s 5\r\n%s\r\n" % (ID.encode(), head)
            for head in (b"$0", b"$-1", b"$x", b"$EOF:short", b"+OK", b"$" + b"9" * 30)
        ),
    ],
)
def test_an_answer_that_is_not_allowed_is_refused(data: bytes) -> None:
    with pytest.raises(LinkError):
        read(data, 1000)

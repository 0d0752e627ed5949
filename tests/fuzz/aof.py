"""The target `aof`: changed AOF files are replayed, as `millstream import` does.

Whatever the bytes are, these hold:

1. a replay ends with keys or with a sentence, and with nothing else;
2. each stream is sound afterwards;
3. the size of the pieces in which the file arrives does not matter;
4. a file that was cut off after a replay had succeeded can be replayed, too;
5. a sentence has an offset within the file;
6. what is replayed is replayed in the same way if failing requests are left out.
"""

from __future__ import annotations

import re
from random import Random

from tests.support.redis_files import AFTER, BEFORE, FOLDER
from tests.support.resp import encode_command
from tests.support.stored_values import shown_value
from tests.unit.test_importing import NOW_MS, reader_of

from millstream.server.moving.aof_replay import Replay, ReplayFailure

DATABASES = 16


def seeds() -> list[bytes]:
    """The files of real servers, and the requests themselves."""
    lines = [line for line in (*BEFORE, *AFTER) if not line.startswith("XREADGROUP")]
    requests = b"#TS:1700000000\r\n" + b"".join(encode_command(line.split()) for line in lines)
    paths = [*sorted(FOLDER.glob("*.aof")), *sorted(FOLDER.glob("*-aof/*incr.aof"))]
    return [requests, *(path.read_bytes() for path in paths)]


def completed(data: bytes, random: Random) -> bytes:
    return data


def check(data: bytes, random: Random) -> None:
    """Check everything for one file. AssertionError, or any other exception, is a finding."""
    made = replayed(data)
    if isinstance(made, str):
        offset = re.search(r"at offset (\d+)", made)
        assert offset is None or int(offset[1]) <= len(data)
        salvaged = replayed(data, salvage=True)
        if isinstance(salvaged, Replay):
            contents(salvaged)
        return
    found = contents(made)
    for again in (
        replayed(data, random.choice((1, 2, 7, 64, 4096))),
        replayed(data, salvage=True),
    ):
        assert isinstance(again, Replay), again
        assert contents(again) == found
    start = made.files[0].rdb.reader.offset if made.files[0].rdb else 0
    if start < len(data):
        cut = replayed(data[: random.randint(start, len(data))])
        assert isinstance(cut, Replay), cut
        contents(cut)


def replayed(data: bytes, piece_bytes: int = 1 << 20, *, salvage: bool = False) -> Replay | str:
    replay = Replay(NOW_MS, salvage, DATABASES)
    try:
        replay.add(reader_of(data, piece_bytes), "x.aof", is_last=True)
    except ReplayFailure as failure:
        return str(failure)
    return replay


def contents(replay: Replay) -> list[tuple[object, ...]]:
    """The keys with digests, and those of other types."""
    found: list[tuple[object, ...]] = []
    for head, value in replay.values():
        found.append((head.database, head.name, head.expires_ms, shown_value(value)))
    return [*found, *((head.database, head.name, passed) for head, passed in replay.others())]

"""The target `link`: what a Redis sends to a server that follows it, with changes: answers, an RDB,
and commands. The server is real, but for its sockets, threads and time.

Whatever the bytes are, these hold:

1. nothing fails in an unforeseen way: the link works, or says why it does not;
2. each stream is sound afterwards;
3. a restart finds the same keys, and a position with no effects after it;
4. the size of the pieces in which the bytes arrive does not matter;
5. a cut link that continues at the position leads to the same keys: commands are applied once;
6. the position is within what was sent;
7. a link that has ended comes back, or says why not.
"""

from __future__ import annotations

import re
import struct
from random import Random

from tests.support import rdb_files
from tests.support.following_server import FollowingServer, session
from tests.support.redis_files import AFTER, BEFORE, FOLDER
from tests.support.resp import encode_command

from millstream.storage.dump.rdb_bytes import crc64

_LINES = [
    "SELECT 0", *(line for line in BEFORE if not line.startswith("XREADGROUP")), "PING",
    "REPLCONF GETACK *", "SETBIT bits 1 1", "APPEND bits x", "PUBLISH news hello",
    "COPY orders copied", "XADD orders IDMP p i 4000-1 a b", "RENAME gone text", *AFTER,
    "SWAPDB 3 4", "RENAME ids renamed", "MOVE number 7", "MULTI", "INCR count", "XADD tx 2-1 a b",
    "EXEC", "FUNCTION LOAD x",
]  # fmt: skip
_HEAD = re.compile(rb"\+FULLRESYNC [^\r\n]*\r\n(?:\$(\d{1,9})|\$EOF:(.{40}))\r\n", re.DOTALL)


def seeds() -> list[bytes]:
    """Sessions: the RDB of real servers, and requests as they send them."""
    requests = _encoded(_LINES)
    open_transaction = _encoded(["MULTI", "SET z 1"])
    small = rdb_files.file(rdb_files.key(b"base", rdb_files.string(b"x")))
    files = [path.read_bytes() for path in sorted(FOLDER.glob("*.rdb"))]
    logs = [path.read_bytes() for path in sorted(FOLDER.glob("*-aof/*incr.aof"))]
    return [
        session(small, requests + open_transaction),
        *(session(small, requests + commands) for commands in logs),
        *(session(data, requests) for data in files),
        session(files[0], logs[0], by_mark=True),
    ]


def _encoded(lines: list[str]) -> bytes:
    return b"".join(encode_command(line.split()) for line in lines)


def completed(data: bytes, random: Random) -> bytes:
    """The session with the right size and checksum of the RDB, mostly."""
    found = _HEAD.search(data)
    if found is None or random.randrange(8) == 0:
        return data
    begin = found.end()
    size = int(found[1]) if found[1] else data.find(found[2], begin) - begin
    if not 9 <= size <= len(data) - begin:
        return data
    rdb = data[begin : begin + size]
    return data[:begin] + rdb[:-8] + struct.pack("<Q", crc64(rdb[:-8])) + data[begin + size :]


def check(data: bytes, random: Random) -> None:
    """Check everything for one session. AssertionError, or any other exception, is a finding."""
    whole = FollowingServer(random).deliver(data, len(data))
    found = whole.contents()
    again = whole.restarted()
    assert again[1:] == found[1:]
    assert again[0] <= found[0]  # commands without effects may run again
    pieces = FollowingServer(random).deliver(data, random.choice((1, 3, 17, 500, 4096)))
    assert (pieces.contents(), pieces.error) == (found, whole.error)
    if not whole.is_up:
        assert pieces.asks_again, pieces.error
        return
    following = whole.following
    assert following is not None
    sent_bytes = following._reader.taken_bytes + following._reader.waiting_bytes
    start = len(data) - sent_bytes
    assert 0 <= following.offset - following._base_offset <= sent_bytes
    cut = FollowingServer(random)
    cut.deliver(data[: random.randint(start, len(data))], 4096, rests=False)
    cut.cut_off()
    position = cut.asked_position()
    if position is not None:
        rest = data[start + position - following._base_offset :]
        cut.deliver(b"+CONTINUE\r\n" + rest, 4096)
        assert cut.contents() == found, cut.error

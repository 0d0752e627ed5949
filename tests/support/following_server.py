"""A server that follows a Redis, in this process: only its sockets, threads and time are not real.
The test is the Redis, and delivers bytes."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.sim.fleet_node import FleetConfig, FleetNode
from tests.sim.world import Faults
from tests.support.stored_values import shown_value

from millstream.server.moving.converting import DescriptorOutput, Task, convert
from millstream.server.moving.spool_conversion import SpoolConverter
from millstream.server.replication.redis_following import Following
from millstream.storage.files.disk import SystemDisk

NOW_MS = 1_700_000_000_000
PORT = 6379
REPLID = b"0123456789abcdef" * 2 + b"01234567"
OFFSET = 1000
MARK = b"f" * 40
# To PING, two introductions, and INFO.
ANSWERS = (
    b"+PONG\r\n-ERR Unrecognized REPLCONF option: databases\r\n+OK\r\n+OK\r\n+OK\r\n"
    b"$24\r\nvalkey_version:9.1.2\r\nx:\r\n\r\n"
)
_STEPS_MAX = 20_000
_SECONDS = 3  # in which a link comes back


def session(rdb: bytes, commands: bytes, *, by_mark: bool = False) -> bytes:
    """All bytes of a Redis, from its first answer on."""
    head = b"$EOF:" + MARK if by_mark else b"$%d" % len(rdb)
    mark = MARK if by_mark else b""
    begin = b"\n+FULLRESYNC %s %d\r\n" % (REPLID, OFFSET)
    return ANSWERS + begin + head + b"\r\n" + rdb + mark + commands


class _InProcess(SpoolConverter):
    """Converts without another process."""

    def __init__(self) -> None:
        super().__init__(lambda: 1 << 30)

    @contextmanager
    def _messages(self, task: Task, is_over: Any) -> Iterator[Iterator[str]]:
        os.lseek(task.sources[0].descriptor, 0, os.SEEK_SET)
        lines: list[str] = []
        convert(
            task, DescriptorOutput(task.base), NOW_MS, os.urandom,
            lambda message: lines.append(json.dumps(message)),
        )  # fmt: skip
        yield iter(lines)


class FollowingServer:
    """A server that follows a Redis, which sends what the test delivers. It is the fleet of the
    server, and the transport of its link."""

    time_ms, wall_ms, node_entries = 0, NOW_MS, 100

    def __init__(self, random: Random) -> None:
        self.broken: list[str] = []
        self._random = random
        memory = Path("/dev/shm")
        self._folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
        self._connection: Any = None
        self._sent = bytearray()
        self._node = self._start(f"redis {PORT}")

    def _start(self, replicaof: str) -> FleetNode:
        disk: Any = SystemDisk(Path(self._folder.name))
        fleet: Any = self
        config = FleetConfig(appendfsync="no", replicaof=replicaof, replicas_durable=0)
        node = FleetNode(fleet, 0, disk, config, Random(1))
        node.replication.late.converter = _InProcess()
        node.start()
        self._rest(node)
        return node

    # What the server asks for

    def connect(self, node: FleetNode, port: int, connection: Any) -> None:
        """The server connects to the Redis."""
        assert port == PORT
        self._sent.clear()
        self._connection = connection
        node.loop.call_soon(connection.connection_made, self)

    def frame(self, node: FleetNode, seq: int, payload: bytes | None) -> None:
        """A frame of the journal."""

    def has_loaded(self, node: FleetNode) -> None:
        """The server has its data."""

    def write(self, data: bytes) -> None:
        self._sent += data

    def close(self) -> None:
        self._connection = None

    abort = close

    def pause_reading(self) -> None:
        """The bytes come anyway: that is allowed for some time."""

    resume_reading = pause_reading

    # The Redis

    def deliver(self, data: bytes, piece_bytes: int, *, rests: bool = True) -> FollowingServer:
        """Send bytes in pieces. Without `rests`, the server may not have finished with them."""
        faults = Faults()
        log = logging.getLogger("millstream")
        log.addHandler(faults)
        try:
            for at in range(0, len(data), max(piece_bytes, 1)):
                if self._connection is None:
                    break
                self._connection.data_received(data[at : at + piece_bytes])
                self._steps(self._node, self._random.randrange(4))
            if rests:
                self._rest(self._node)
        finally:
            log.removeHandler(faults)
        assert not faults.found, faults.found[0]
        assert not self.broken, self.broken
        return self

    def cut_off(self) -> None:
        """The connection ends; the server connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.connection_lost(None)
        for _ in range(_SECONDS):
            self._rest(self._node)
            self._node.loop.time_ms += 1000
        self._rest(self._node)

    def asked_position(self) -> int | None:
        """Answer the introduction of a new link: the offset after which the server asks for
        commands. None if it asks for everything."""
        self.deliver(ANSWERS, len(ANSWERS))
        asked = re.search(rb"PSYNC\r\n\$40\r\n%s\r\n\$\d+\r\n(\d+)" % REPLID, bytes(self._sent))
        return None if asked is None else int(asked[1]) - 1

    @staticmethod
    def _steps(node: FleetNode, count: int) -> None:
        for _ in range(count):
            if node.has_work():
                node.step()

    @staticmethod
    def _rest(node: FleetNode) -> None:
        """Run everything that is to be done within a tenth of a second."""
        end_ms = node.loop.time_ms + 100
        for _ in range(_STEPS_MAX):
            if node.has_work():
                node.step()
                continue
            next_ms = node.loop.next_timer_ms()
            if next_ms is None or next_ms > end_ms:
                return
            node.loop.time_ms = max(node.loop.time_ms, next_ms)
        raise AssertionError("the server does not come to rest")

    # The result

    @property
    def following(self) -> Following | None:
        link = self._node.replication.link
        return None if link is None or link.redis is None else link.redis.following

    @property
    def is_up(self) -> bool:
        following = self.following
        return following is not None and following.is_open and self._connection is not None

    @property
    def asks_again(self) -> bool:
        """True if a link that was cut is there again, or stays down for a reason that is shown."""
        self.cut_off()
        link = self._node.replication.link
        is_halted = link is not None and link.redis is not None and link.redis.is_halted
        return self._connection is not None or (is_halted and self.error != "")

    @property
    def error(self) -> str:
        return self._node.replication.totals.last_error

    def contents(self) -> list[Any]:
        """The position, the dropped strings, and the keys with digests."""
        return _contents(self._node)

    def restarted(self) -> list[Any]:
        """The contents after a restart of the server."""
        self._node.persistence.commits.sync_soon()
        self._rest(self._node)
        disk: Any = self._node.disk
        disk.unlock()
        again = self._start("")
        disk = again.disk
        disk.unlock()
        return _contents(again)


def _contents(node: FleetNode) -> list[Any]:
    """The keys with digests, and the position."""
    source = node.keyspace.source
    found: list[Any] = [-1 if source is None else source.offset]
    found.append(tuple(sorted(node.keyspace.dropped_strings)))
    for number, database in enumerate(node.keyspace.databases):
        database.settle_all()
        for key, value in sorted(database.table.items()):
            found.append((number, key, database.expiries.get(key), shown_value(value)))
    return found

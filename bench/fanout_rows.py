"""Blocked readers: the cost and the time until one append has reached all of them.

redis-benchmark cannot wait for another connection, so the readers are sockets of this process, all
on one epoll. Each append is measured separately, starting when all readers wait and the server is
idle. The figures do not include the commands with which the readers block again.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time

from bench.datasets import KEY, SENSOR_ENTRY
from bench.figures import BenchError, Lanes, Reading
from bench.harness import Harness, Side
from bench.wire import TIMEOUT_S, Client

RECEIVE_BYTES = 64 * 1024
SPARE_FILES = 200
POLL_S = 0.01


def woken_readers(harness: Harness, readers: int, full: int, quick: int) -> Lanes:
    """CPU time of an append that wakes `readers` blocked clients. The rate is the inverse of the
    seconds until the last of them has its reply. `full` (or `quick`) appends per round."""
    allow_files(readers + SPARE_FILES)
    pair = harness.pair("waking")
    times = harness.plan.size(full, quick)
    for side in pair.values():
        wake(side, readers, 1)
    return harness.alternate_sides(pair, lambda side: wake(side, readers, times))


def wake(side: Side, readers: int, times: int) -> Reading:
    """One round on one server."""
    side.empty()
    side.call(*side.append(KEY, SENSOR_ENTRY))
    cpu_ns = 0
    seconds = 0.0
    with Crowd(side.server.port, readers) as crowd, Client(side.server.port) as writer:
        for _ in range(times):
            crowd.wait(side.wait_for_more())
            wait_until_blocked(writer, readers)
            side.server.settle()
            before_ns, began = side.server.cpu_ns(), time.perf_counter()
            writer.send_call(*side.append(KEY, SENSOR_ENTRY))
            crowd.hear()
            seconds += time.perf_counter() - began
            writer.receive("an append")
            side.server.settle()
            cpu_ns += side.server.cpu_ns() - before_ns
    return Reading(cpu_ns / times, times / seconds)


def wait_until_blocked(client: Client, readers: int) -> None:
    """Return when the server reports that all readers wait."""
    deadline = time.monotonic() + TIMEOUT_S
    while f"blocked_clients:{readers}\r\n" not in str(client.call("INFO", "clients")):
        if time.monotonic() > deadline:
            raise BenchError(f"not all of {readers} readers came to wait")
        time.sleep(POLL_S)


def allow_files(count: int) -> None:
    """Raise this process' limit of open files to `count`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(hard, count)))
        except (OSError, ValueError) as error:
            raise BenchError(f"{count} open files are needed, {soft} are allowed") from error


class Crowd:
    """Many connections that wait at the same time."""

    def __init__(self, port: int, count: int) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.epoll()
        self._room = bytearray(RECEIVE_BYTES)
        for _ in range(count):
            made = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[made.fileno()] = made
            self._poll.register(made.fileno(), select.EPOLLIN)

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self._poll.close()
        for made in self._sockets.values():
            with contextlib.suppress(OSError):
                made.close()

    def wait(self, request: bytes) -> None:
        """Send the request on every connection."""
        for made in self._sockets.values():
            made.sendall(request)

    def hear(self) -> None:
        """Return when every connection has its reply (small enough to arrive in one piece)."""
        missing = set(self._sockets)
        while missing:
            ready = self._poll.poll(TIMEOUT_S)
            if not ready:
                raise BenchError(f"{len(missing)} blocked readers were not woken")
            for number, _ in ready:
                size = self._sockets[number].recv_into(self._room)
                if size == 0 or self._room[:1] == b"-":
                    raise BenchError(f"a blocked reader got {bytes(self._room[:size])!r}")
                missing.discard(number)

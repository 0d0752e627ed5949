"""Runs a delivery whose reply does not fit into memory, in a separate process.

The memory that a process can still allocate depends on what it freed before, so earlier tests would
influence the result: `python -m tests.support.short_memory LINE` starts a new process.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Reply
from tests.support.storage_access import deliver_id

from millstream.storage.streams.stream import Stream

MIB = 1 << 20


@contextmanager
def spare_memory(size_bytes: int) -> Iterator[None]:
    """Limit this process to about `size_bytes` more memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def large_stream() -> tuple[InProcessServer, InProcessClient, Stream]:
    in_process = InProcessServer()
    player = in_process.player()
    player.call("XGROUP CREATE s g 0 MKSTREAM")
    for number in range(1, 97):
        player.call(f"XADD s {number}-1 n {'v' * MIB}")
    stream = in_process.keyspace.databases[0].stream(b"s")
    assert stream is not None
    return in_process, player, stream


def is_out_of_memory(reply: Reply) -> bool:
    return isinstance(reply, Error) and reply.text.startswith("OOM")


def first_delivery(line: str) -> None:
    """If the reply cannot be made, nothing is delivered and nothing is pending."""
    _, player, stream = large_stream()
    with spare_memory(48 * MIB):
        assert is_out_of_memory(player.call(line))
    group = stream.groups[b"g"]
    assert (group.offset_ms, group.pending.count) == (0, 0)


def redelivery(line: str) -> None:
    """If the reply cannot be made, the counts of pending entries do not change."""
    in_process, player, stream = large_stream()
    group = stream.groups[b"g"]
    for number in range(1, 97):
        deliver_id(group, number, 1, in_process.wall_ms, retry=(0, 0))
    before = group.pending.rows()
    with spare_memory(48 * MIB):
        assert is_out_of_memory(player.call(line))
    assert group.pending.rows() == before


if __name__ == "__main__":
    {"first": first_delivery, "again": redelivery}[sys.argv[1]](sys.argv[2])

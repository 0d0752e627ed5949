"""Reads and acknowledgements of a group whose stream has EVICT DONE (TPOLICY), against the same
without a policy: our server against itself.

A worker reads ten entries and acknowledges them. All requests are sent over connections of this
process, because the acknowledgement needs the IDs of the read.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.datasets import KEY, SENSOR_ENTRY, encode
from bench.figures import Lanes
from bench.harness import GROUP, Harness, Side
from bench.wire import Client
from bench.writer_rows import connections, ours, times_as_long

COUNT = 10
TOGETHER = 16  # pairs of a read and an acknowledgement in a pipeline


def read_and_acknowledge(harness: Harness, full: int, quick: int) -> Lanes:
    """The cost of reading and acknowledging all entries with EVICT DONE, as a multiple of the cost
    without."""
    side = ours(harness)
    batches = harness.plan.size(full, quick) // (COUNT * TOGETHER)
    requests = [batch_of(number) for number in range(batches)]
    with connections(side, 1) as (client,):
        return times_as_long(
            harness,
            lambda: cost(side, client, requests, ()),
            lambda: cost(side, client, requests, ("TPOLICY", KEY, "EVICT", "DONE")),
        )


def entry_id(number: int) -> str:
    return f"{number + 1}-1"


def batch_of(number: int) -> bytes:
    """Reads and acknowledgements of the next entries, in one pipeline."""
    words = []
    for read in range(number * TOGETHER, (number + 1) * TOGETHER):
        ids = [entry_id(entry) for entry in range(read * COUNT, (read + 1) * COUNT)]
        words.append(
            encode("XREADGROUP", "GROUP", GROUP, "c", "COUNT", str(COUNT), "STREAMS", KEY, ">")
        )
        words.append(encode("XACK", KEY, GROUP, *ids))
    return b"".join(words)


def cost(side: Side, client: Client, requests: list[bytes], policy: tuple[str, ...]) -> float:
    """The server's CPU time for the reads and acknowledgements of a new stream."""
    side.empty()
    client.send(encode("XGROUP", "CREATE", KEY, GROUP, "0", "MKSTREAM"))
    client.receive("XGROUP")
    for number in range(len(requests)):
        first = number * TOGETHER * COUNT
        ids = range(first, first + TOGETHER * COUNT)
        client.send(b"".join(encode("XADD", KEY, entry_id(one), *SENSOR_ENTRY) for one in ids))
        client.skip_ids(len(ids))
    if policy:
        side.call(*policy)
    side.server.settle()
    return sent(side, client, requests, 2 * TOGETHER)


def sent(side: Side, client: Client, requests: Sequence[bytes], replies: int) -> float:
    """The server's CPU time for requests of which each has this number of replies."""
    before_ns = side.server.cpu_ns()
    for request in requests:
        client.send(request)
        for _ in range(replies):
            client.receive("a request")
    side.server.settle()
    return side.server.cpu_ns() - before_ns

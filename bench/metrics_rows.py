"""The page of metrics: the server's CPU time for a scrape of many streams and groups.

Redis has no such page, so the figure is compared only with its goal.
"""

from __future__ import annotations

import time
import urllib.request

from bench.figures import OURS, REDIS, BenchError, Lanes, Reading
from bench.harness import JOURNAL_OFF, Harness
from bench.server import Server, free_port
from bench.wire import Client

STREAMS = 1000
GROUPS = 3  # for each stream
ENTRIES = 20
PAGE_KEPT_S = 1.0  # the server builds a new page after this time


def scrapes(harness: Harness, full: int, quick: int) -> Lanes:
    """CPU time of one scrape, in microseconds: building the page and sending it."""
    harness.stop()
    port = free_port()
    directives = (*JOURNAL_OFF, "--metrics-port", str(port))
    server = Server(harness.ours_command, directives, harness.server_core)
    try:
        fill(server)
        scrape(port)
        return {
            REDIS: [Reading(1.0)] * harness.plan.rounds,
            OURS: [measured(server, port, harness.plan.size(full, quick))
                   for _ in range(harness.plan.rounds)],
        }  # fmt: skip
    finally:
        server.stop()


def fill(server: Server) -> None:
    with Client(server.port) as client:
        for number in range(STREAMS):
            key = f"stream:{number}"
            for _ in range(ENTRIES):
                client.call("XADD", key, "*", "temperature", "21.5")
            for group in range(GROUPS):
                client.call("XGROUP", "CREATE", key, f"group{group}", "0")
            client.call("XREADGROUP", "GROUP", "group0", "c", "COUNT", "5", "STREAMS", key, ">")
    server.settle()


def scrape(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        page = answer.read()
    for name, count in (("redis_stream_length", STREAMS),
                        ("redis_stream_group_lag", STREAMS * GROUPS)):  # fmt: skip
        if page.count(f"\n{name}{{".encode()) != count:
            raise BenchError(f"the page has not {count} samples of {name}")


def measured(server: Server, port: int, count: int) -> Reading:
    used_ns = 0
    for _ in range(count):
        time.sleep(PAGE_KEPT_S)
        before_ns = server.cpu_ns()
        scrape(port)
        used_ns += server.cpu_ns() - before_ns
    return Reading(used_ns / count / 1000)

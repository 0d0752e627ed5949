"""CONFIG SET of a directive takes effect where its value is used.

The server runs on a thread of the test, which reads its parts. Directives that are read wherever
they are used have no copy to forget: tests/unit/test_config.py checks that something reads them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.resp import Error, Reply, Simple
from tests.support.server import free_port
from tests.support.waiting import wait_until

from millstream.server import life
from millstream.server.config.apply import ONE_VALUE, READ, certificates
from millstream.server.config.directives import DIRECTIVES
from millstream.server.config.loading import load
from millstream.server.monitor.log import LOGGER, JsonFormat

OK = Simple("OK")
WITH_REPLICAS = {"min-replicas-max-lag", "replica-serve-stale-data"}  # tests/sim
OF_CLIENT_LIMITS = {
    "maxmemory-clients", "user-limits", "oom-score-adj", "oom-score-adj-values",
}  # fmt: skip  # test_client_limits
OF_CRASHES = {"crash-log-enabled"}  # test_signals
AFTER_FAILED_SAVES = {"save", "stop-writes-on-bgsave-error"}  # tests/crash/test_full_disk
OF_CLUSTERS = {
    "cluster-allow-reads-when-down",
    "cluster-require-full-coverage",
}  # test_member_shards


class Live:
    """A running server, and a client of it."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._is_ready = threading.Event()
        self._thread.start()
        wait_until(self._is_ready.is_set, what="a server")
        self.client = RawClient(self.port)

    async def _serve(self) -> None:
        words = ["--dir", str(self._directory), "--port", str(self.port)]
        self.server = life.Server(load(None, [*words, "--enable-debug-command", "yes"]))
        await self.server.start()
        self._is_ready.set()
        await self.server.stopping.wait()
        await self.server.stop()

    def call(self, line: str) -> Reply:
        return self.client.call(*line.split(" "))

    def stop(self) -> None:
        self.client.close()
        self.server.loop.call_soon_threadsafe(self.server.shutdown.request, "the test is over")
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    handler = logging.StreamHandler()
    LOGGER.addHandler(handler)
    level = LOGGER.level
    live = Live(tmp_path_factory.mktemp("settings") / "data")
    yield live
    live.stop()
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


def of_newcomer(live: Live) -> Reply:
    with RawClient(live.port) as client:
        return client.call("DBSIZE")


def channels_of_new_user(live: Live) -> Reply:
    live.call("ACL SETUSER u on")
    facts = as_list(live.call("ACL GETUSER u"))
    live.call("ACL DELUSER u")
    return facts[facts.index(b"channels") + 1]


def denials(live: Live) -> int:
    for name in ("one", "two"):
        live.call(f"AUTH {name} wrong")
    return len(as_list(live.call("ACL LOG")))


def slow_commands(live: Live) -> int:
    for _ in range(3):
        live.call("DEBUG SLEEP 0.011")  # longer than the default of slowlog-log-slower-than
    count = live.call("SLOWLOG LEN")
    assert isinstance(count, int)
    live.call("SLOWLOG RESET")
    return count


def spikes(live: Live) -> Reply:
    live.call("DEBUG SLEEP 0.002")
    return live.call("LATENCY RESET")


def pings_in_slowlog(live: Live) -> bool:
    live.call("PING")
    entries = as_list(live.call("SLOWLOG GET -1"))
    live.call("SLOWLOG RESET")
    return [b"PING"] in [as_list(entry)[3] for entry in entries]


def error_of_write(live: Live) -> str:
    reply = live.call("SET k v")
    return reply.text.split(" ")[0] if isinstance(reply, Error) else "none"


def events_of_key(live: Live) -> Reply:
    with RawClient(live.port) as listener:
        listener.call("SUBSCRIBE", "__keyspace@0__:k")
        live.call("SET k v")
        received = listener.call("PING")
        return as_list(received)[-1]


def entries_read_of_one_key(live: Live) -> Reply:
    """The number that a group with an ORDER reads, of four: one is delivered, the rest parked."""
    live.call("DEL ordered")
    live.call("TGROUP ordered g START 0 TIMEOUT 60000 ORDER FIELD f")
    for _ in range(4):
        live.call("XADD ordered * f a")
    for _ in range(2):
        live.call("XREADGROUP GROUP g c COUNT 9 STREAMS ordered >")
    group = as_list(as_list(live.call("XINFO GROUPS ordered"))[0])
    live.call("DEL ordered")
    return group[group.index(b"entries-read") + 1]


def journal_mode(live: Live) -> str:
    journal = live.server.persistence.commits.journal
    return "" if journal is None else journal.mode


def of_keyspace(name: str) -> Callable[[Live], object]:
    return lambda live: getattr(live.server.keyspace, name)


def of_requests(name: str) -> Callable[[Live], object]:
    return lambda live: getattr(live.server.executor.limits, name)


# appendonly is last: a base is written afterwards.
EFFECTS: dict[str, tuple[str, Callable[[Live], object], object]] = {
    "requirepass": ("secret", of_newcomer, Error("NOAUTH Authentication required.")),
    "acl-pubsub-default": ("allchannels", channels_of_new_user, b"&*"),
    "acllog-max-len": ("1", denials, 1),
    "appendfsync": ("everysec", journal_mode, "everysec"),
    "appendfsync-groups": (
        "everysec", lambda live: live.server.persistence.commits.frees_groups, True,
    ),
    "journal-queue-limit": (
        "1000", lambda live: live.server.executor.backpressure.limit_bytes, 1000,
    ),
    "proto-max-bulk-len": ("2mb", of_requests("bulk_bytes"), 2 << 20),
    "client-query-buffer-limit": ("2mb", of_requests("query_bytes"), 2 << 20),
    "client-output-buffer-limit": (
        "pubsub 2000 0 0", lambda live: live.server.executor.outbox.least_limit_bytes, 2000,
    ),
    "stream-node-max-bytes": ("2000", of_keyspace("node_bytes"), 2000),
    "stream-node-max-entries": ("0", of_keyspace("node_entries"), 2**32 - 1),
    "stream-idmp-duration": ("7", of_keyspace("idmp_duration_s"), 7),
    "stream-idmp-maxsize": ("8", of_keyspace("idmp_maxsize"), 8),
    "stream-producers-max": ("9", of_keyspace("producers_max"), 9),
    "stream-held-max-bytes": ("10", of_keyspace("held_max_bytes"), 10),
    "stream-reservations-max": ("11", of_keyspace("reservations_max"), 11),
    "stream-writers-max": ("12", of_keyspace("writers_max"), 12),
    "stream-scheduled-max": ("13", of_keyspace("scheduled_max"), 13),
    "stream-scheduled-max-bytes": ("14", of_keyspace("scheduled_max_bytes"), 14),
    "group-parked-max": ("2", entries_read_of_one_key, 3),
    "loglevel": ("warning", lambda live: LOGGER.level, logging.WARNING),
    "log-format": ("json", lambda live: type(LOGGER.handlers[0].formatter), JsonFormat),
    "slowlog-log-slower-than": ("0", pings_in_slowlog, True),
    "slowlog-max-len": ("2", slow_commands, 2),
    "latency-monitor-threshold": ("1", spikes, 1),
    "notify-keyspace-events": ("K$", events_of_key, b"set"),
    "maxmemory": ("1", error_of_write, "OOM"),
    "maxmemory-policy": ("allstreams-oldest", lambda live: live.server.eviction.evicts, True),
    "min-replicas-to-write": ("1", error_of_write, "NOREPLICAS"),
    "replicas-durable": ("1", error_of_write, "NOREPLICAS"),
    "appendonly": ("no", lambda live: live.server.executor.effects.enabled, False),
}  # fmt: skip


def test_each_directive_with_an_effect_is_in_the_list() -> None:
    own = {
        row.name
        for row in DIRECTIVES.values()
        if row.apply not in (None, READ, ONE_VALUE, certificates)
    }
    elsewhere = WITH_REPLICAS | OF_CLIENT_LIMITS | OF_CRASHES | AFTER_FAILED_SAVES | OF_CLUSTERS
    assert own == EFFECTS.keys() | elsewhere


@pytest.mark.parametrize("name", EFFECTS)
def test_config_set_takes_effect(live: Live, name: str) -> None:
    value, observe, expected = EFFECTS[name]
    earlier = as_bytes(as_list(live.call(f"CONFIG GET {name}"))[1])
    before = observe(live)
    assert live.client.call("CONFIG", "SET", name, value) == OK
    during = observe(live)
    assert live.client.call("CONFIG", "SET", name, earlier) == OK
    assert (before == expected, during, observe(live)) == (False, expected, before)

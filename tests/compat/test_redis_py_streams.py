"""Every stream method of redis-py with all its options: sync and asyncio, RESP2 and RESP3.

What Redis 7.0 has too is asked of both servers, and the objects must be the same. What came later
is held against what the documentation of Redis 8 promises. At the end stand two small programs, a
producer and its workers, under which the server restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import redis
import redis.asyncio
from tests.compat.masks import differences
from tests.support.program import Restart, run_with_restarts
from tests.support.server import Server
from tests.support.waiting import POLL_S

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"]),
]

CLIENTS = pytest.mark.parametrize("kind", ["sync", "asyncio"])


class Call(NamedTuple):
    """One method of the client with its arguments."""

    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def __repr__(self) -> str:
        words = [*map(repr, self.arguments), *(f"{k}={v!r}" for k, v in self.options.items())]
        return f"{self.method}({', '.join(words)})"


def call(method: str, *arguments: Any, **options: Any) -> Call:
    return Call(method, arguments, options)


def answers(kind: str, server: Server, protocol: int, calls: list[Call]) -> list[Any]:
    """The results of the client for each call; for an error, its class and its words."""
    ask = _ask if kind == "sync" else _ask_async
    return ask(server, protocol, calls)


def _ask(server: Server, protocol: int, calls: list[Call]) -> list[Any]:
    came: list[Any] = []
    with redis.Redis(port=server.port, protocol=protocol) as client:
        for method, arguments, options in calls:
            try:
                came.append(getattr(client, method)(*arguments, **options))
            except redis.RedisError as error:
                came.append((type(error).__name__, str(error)))
    return came


def _ask_async(server: Server, protocol: int, calls: list[Call]) -> list[Any]:
    async def ask() -> list[Any]:
        came: list[Any] = []
        async with redis.asyncio.Redis(port=server.port, protocol=protocol) as client:
            for method, arguments, options in calls:
                try:
                    came.append(await getattr(client, method)(*arguments, **options))
                except redis.RedisError as error:
                    came.append((type(error).__name__, str(error)))
        return came

    return asyncio.run(ask())


def entries(*numbers: int) -> list[Call]:
    """Entries 1-1, 2-1 ... of stream `s`."""
    return [call("xadd", "s", {"n": number}, id=f"{number}-1") for number in numbers]


APPENDING = [
    call("xadd", "s", {"a": "1"}, id="1-1", nomkstream=True),
    call("exists", "s"),
    *entries(1, 2, 3),
    call("xadd", "s", {"n": "again"}, id="3-1"),
    call("xadd", "s", {"n": "sequence by the server"}, id="3-*"),
    call("xadd", "s", {}, id="4-1"),
    call("xadd", "s", {"n": 4}, id="4-1", nomkstream=True),
    call("xadd", "s", {"n": 5, b"\x00": b"\xff", "float": 1.5}, id="5-1", maxlen=4),
    call("xadd", "s", {"n": 6}, id="6-1", maxlen=4, approximate=False),
    call("xadd", "s", {"n": 7}, id="7-1", maxlen=2, approximate=True, limit=10),
    call("xadd", "s", {"n": 8}, id="8-1", minid="5", approximate=False),
    call("xadd", "s", {"n": 9}, id="9-1", minid="7", approximate=True, limit=1),
    call("xadd", "s", {"n": 10}, id="10-1", maxlen=1, minid="1"),
    call("xadd", "s", {"n": 10}, id="10-1", maxlen=-1),
    call("xlen", "s"),
    call("xlen", "nokey"),
    call("xrange", "s"),
    call("xrange", "s", min="6", max="8-1"),
    call("xrange", "s", min="(6-1", max="+", count=1),
    call("xrange", "s", count=0),
    call("xrange", "nokey"),
    call("xrevrange", "s"),
    call("xrevrange", "s", max="8", min="(6-1", count=2),
    call("xrevrange", "s", max="(7-1", min="-"),
    call("xtrim", "s", maxlen=3, approximate=False),
    call("xtrim", "s", maxlen=1, approximate=True, limit=1000),
    call("xtrim", "s", minid="9-1", approximate=False),
    call("xtrim", "s", minid="9-1", approximate=True),
    call("xtrim", "s", minid="9-1", approximate=False, limit=5),
    call("xtrim", "s", maxlen=1, minid="9-1"),
    call("xdel", "s", "9-1", "9-1", "1-1"),
    call("xdel", "s", "x"),
    call("xinfo_stream", "s"),
    call("xadd", "s", {"n": 1}, id="8-1"),
    call("set", "string", "x"),
    call("xadd", "string", {"n": 1}),
    call("xrange", "string"),
    call("type", "s"),
]

READING = [
    *entries(1, 2, 3),
    call("xadd", "other", {"n": 1}, id="1-1"),
    call("xread", {"s": 0}),
    call("xread", {"s": "1-1", "other": "0"}, count=1),
    call("xread", {"s": b"1"}, block=1),
    call("xread", {"s": "$"}),
    call("xread", {"s": "$", "other": "$"}, block=1),
    call("xread", {"s": "3-1", "nokey": 0}, block=1),
    call("xread", {"s": "x"}),
    call("xread", {}),
    call("xread", {"s": 0}, count=0),
    call("xread", {"s": 0}, block=-1),
    call("xgroup_create", "s", "g", id="0"),
    call("xreadgroup", "g", "alice", {"s": ">"}, count=1),
    call("xreadgroup", "g", "alice", {"s": ">"}, count=1, noack=True),
    call("xreadgroup", "g", "bob", {"s": ">"}, block=1),
    call("xreadgroup", "g", "bob", {"s": ">"}, block=1),
    call("xreadgroup", "g", "bob", {"s": ">"}),
    call("xreadgroup", "g", "alice", {"s": 0}),
    call("xreadgroup", "g", "bob", {"s": "0"}, count=10, block=1),
    call("xreadgroup", "g", "bob", {"s": "9"}),
    call("xreadgroup", "nogroup", "bob", {"s": ">"}),
    call("xreadgroup", "g", "bob", {"nokey": ">"}, block=1),
    call("xgroup_create", "other", "g", id="0"),
    *entries(4),
    call("xreadgroup", "g", "carol", {"s": ">", "other": ">"}),
    call("xack", "s", "g", "1-1"),
    call("xack", "s", "g", "1-1", "3-1", "9-9"),
    call("xack", "s", "nogroup", "1-1"),
    call("xack", "nokey", "g", "1-1"),
    call("xpending", "s", "g"),
    call("xinfo_groups", "s"),
    call("xinfo_consumers", "s", "g"),
]

GROUPS = [
    call("xgroup_create", "s", "g"),
    call("xgroup_create", "s", "g", id="$", mkstream=True),
    call("xgroup_create", "s", "g", mkstream=True),
    *entries(1, 2, 3),
    call("xgroup_create", "s", "h", id="1-1", entries_read=1),
    call("xgroup_createconsumer", "s", "h", "alice"),
    call("xgroup_createconsumer", "s", "h", "alice"),
    call("xgroup_createconsumer", "s", "nogroup", "alice"),
    call("xinfo_groups", "s"),
    call("xinfo_groups", "nokey"),
    call("xreadgroup", "h", "alice", {"s": ">"}),
    call("xgroup_setid", "s", "h", "1-1"),
    call("xgroup_setid", "s", "h", "2-1", entries_read=2),
    call("xgroup_setid", "s", "nogroup", "0"),
    call("xinfo_groups", "s"),
    call("xinfo_consumers", "s", "h"),
    call("xinfo_consumers", "s", "nogroup"),
    call("xinfo_stream", "s"),
    call("xinfo_stream", "s", full=True),
    call("xinfo_stream", "nokey"),
    call("xgroup_delconsumer", "s", "h", "alice"),
    call("xgroup_delconsumer", "s", "h", "alice"),
    call("xgroup_destroy", "s", "h"),
    call("xgroup_destroy", "s", "h"),
    call("xgroup_destroy", "nokey", "h"),
]

CLAIMING = [
    *entries(1, 2, 3, 4, 5),
    call("xgroup_create", "s", "g", id="0"),
    call("xreadgroup", "g", "alice", {"s": ">"}, count=4),
    call("xpending", "s", "g"),
    call("xpending_range", "s", "g", "-", "+", 10),
    call("xpending_range", "s", "g", "(1-1", "3", 1),
    call("xpending_range", "s", "g", min="-", max="+", count=10, consumername="bob"),
    call("xpending_range", "s", "g", min="-", max="+", count=10, consumername="alice", idle=0),
    call("xpending_range", "s", "g", min="-", max="+", count=10, idle=3_600_000),
    call("xpending_range", "s", "g", min=None, max=None, count=None),
    call("xpending", "s", "nogroup"),
    call("xclaim", "s", "g", "bob", 0, ["1-1"]),
    call("xclaim", "s", "g", "bob", 3_600_000, ["2-1"]),
    call("xclaim", "s", "g", "bob", 0, ("2-1", "9-9"), idle=5000),
    call("xclaim", "s", "g", "bob", 4000, ["2-1"], retrycount=7),
    call("xclaim", "s", "g", "bob", 0, ["3-1"], time=1_000_000, justid=True),
    call("xclaim", "s", "g", "bob", 0, ["5-1"]),
    call("xclaim", "s", "g", "bob", 0, ["5-1"], force=True, retrycount=3),
    call("xclaim", "s", "nogroup", "bob", 0, ["1-1"]),
    call("xclaim", "nokey", "g", "bob", 0, ["1-1"]),
    call("xpending_range", "s", "g", "-", "+", 10),
    call("xautoclaim", "s", "g", "carol", 3_600_000),
    call("xautoclaim", "s", "g", "carol", 0, count=2),
    call("xautoclaim", "s", "g", "carol", 0, start_id="3-1", count=1, justid=True),
    call("xdel", "s", "4-1"),
    call("xautoclaim", "s", "g", "dave", 0, start_id="3-1"),
    call("xautoclaim", "s", "g", "dave", 0, justid=True),
    call("xautoclaim", "s", "nogroup", "dave", 0),
    call("xpending_range", "s", "g", "-", "+", 10),
    call("xinfo_consumers", "s", "g"),
    call("xack", "s", "g", "1-1", "2-1", "3-1", "5-1"),
    call("xpending", "s", "g"),
]

CONVERSATIONS = {
    "appending": APPENDING,
    "reading": READING,
    "groups": GROUPS,
    "claiming": CLAIMING,
}


@CLIENTS
@pytest.mark.parametrize("calls", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_the_client_returns_the_same_as_from_redis(
    server: Server, redis_server: Server, protocol: int, kind: str, calls: list[Call]
) -> None:
    ours = answers(kind, server, protocol, calls)
    theirs = answers(kind, redis_server, protocol, calls)
    different = [
        f"{number}. {asked!r}: {line}"
        for number, (asked, our, their) in enumerate(zip(calls, ours, theirs, strict=True), 1)
        for line in differences(our, their)
    ]
    assert not different, "\n".join(different)


# What Redis got after 7.0: each call with its promised answer.
TRIM_AND_DELETE = [
    (call("xgroup_create", "s", "g", id="0", mkstream=True), True),
    *[(asked, f"{number}-1".encode()) for number, asked in enumerate(entries(*range(1, 7)), 1)],
    (call("xreadgroup", "g", "alice", {"s": ">"}, count=5, noack=False), ...),
    (call("xdelex", "s", "1-1", "9-9", ref_policy="ACKED"), [2, 2]),
    (call("xdelex", "s", "1-1", ref_policy="KEEPREF"), [1]),
    (call("xdelex", "s", "2-1", ref_policy="DELREF"), [1]),
    (call("xackdel", "s", "g", "3-1", "3-1", ref_policy="DELREF"), [1, -1]),
    (call("xackdel", "s", "g", "4-1", ref_policy="ACKED"), [1]),
    (call("xackdel", "s", "g", "9-9"), [-1]),
    (call("xpending", "s", "g"), {"pending": 2, "min": b"1-1", "max": b"5-1",
                                  "consumers": [{"name": b"alice", "pending": 2}]}),
    (call("xtrim", "s", maxlen=0, approximate=False, ref_policy="ACKED"), 0),
    (call("xtrim", "s", maxlen=1, approximate=False, ref_policy="DELREF"), 1),
    (call("xpending_range", "s", "g", "5-1", "5-1", 1), []),
    (call("xadd", "s", {"n": 7}, id="7-1", maxlen=1, approximate=False, ref_policy="KEEPREF"),
     b"7-1"),
    (call("xlen", "s"), 1),
]  # fmt: skip

ONCE_ONLY = [
    (call("xadd", "s", {"n": 1}, id="1-1"), b"1-1"),
    (call("xcfgset", "s", idmp_duration=60, idmp_maxsize=10), b"OK"),
    (call("xadd", "s", {"n": 2}, idmp=("producer", "one")), "an id"),
    (call("xadd", "s", {"n": 3}, idmp=("producer", "one")), "the same id"),
    (call("xadd", "s", {"n": 4}, idmpauto="other"), "an id"),
    (call("xadd", "s", {"n": 4}, idmpauto="other"), "the same id"),
    (call("xlen", "s"), 3),
    (call("execute_command", "XADD", "s", "IDMPAUTO", "other", "9-9", "n", 5),
     ("ResponseError",
      "syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")),
    (call("xcfgset", "nokey", idmp_duration=60), ("ResponseError", "no such key")),
]  # fmt: skip

CLAIMING_READS = [
    *[(asked, f"{number}-1".encode()) for number, asked in enumerate(entries(1, 2, 3), 1)],
    (call("xgroup_create", "s", "g", id="0"), True),
    (call("xreadgroup", "g", "alice", {"s": ">"}, count=2), ...),
    (call("xclaim", "s", "g", "alice", 0, ["1-1"], idle=5000, retrycount=4, justid=True), [b"1-1"]),
    (call("xreadgroup", "g", "bob", {"s": ">"}, claim_min_idle_time=4000), "1-1 and 3-1"),
    (call("xread", {"s": "+"}), "3-1"),
    (call("xread", {"nokey": "+"}), "nothing"),
]

RELEASING = [
    *[(asked, f"{number}-1".encode()) for number, asked in enumerate(entries(1, 2, 3), 1)],
    (call("xgroup_create", "s", "g", id="0"), True),
    (call("xreadgroup", "g", "alice", {"s": ">"}, count=2), ...),
    (call("xnack", "s", "g", "FAIL", "1-1", "3-1"), 1),
    (call("xnack", "s", "g", "SILENT", "2-1", retrycount=9), 1),
    (call("xnack", "s", "g", "FATAL", "3-1", force=True), 1),
    (call("xpending", "s", "g"), {"pending": 3, "min": b"1-1", "max": b"3-1", "consumers": []}),
]

LIMITED_READS = [
    *[(asked, f"{number}-1".encode()) for number, asked in enumerate(entries(1, 2, 3), 1)],
    (call("xadd", "other", {"n": 1}, id="1-1"), b"1-1"),
    (call("xread", {"s": 0, "other": 0}, max_count=2), "2 entries"),
    (call("xread", {"s": 0, "other": 0}, count=1, max_count=10), "2 entries"),
    (call("xread", {"s": 0, "other": 0}, max_size=1), "1 entries"),
    (call("xgroup_create", "s", "g", id="0"), True),
    (call("xreadgroup", "g", "alice", {"s": ">"}, max_count=1), "1 entries"),
    (call("xreadgroup", "g", "alice", {"s": ">"}, max_size=1_000_000), "2 entries"),
]


@CLIENTS
@pytest.mark.parametrize(
    "promised",
    [
        pytest.param(TRIM_AND_DELETE, id="xdelex xackdel"),
        pytest.param(ONCE_ONLY, id="xcfgset"),
        pytest.param(CLAIMING_READS, id="xreadgroup claim xclaim"),
        pytest.param(RELEASING, id="xnack"),
        pytest.param(LIMITED_READS, id="xread maxsize xreadgroup maxsize"),
    ],
)
def test_the_client_returns_the_results_of_redis_8(
    server: Server, protocol: int, kind: str, promised: list[tuple[Call, Any]]
) -> None:
    came = answers(kind, server, protocol, [asked for asked, _ in promised])
    different, last = [], None
    for number, ((asked, wanted), reply) in enumerate(zip(promised, came, strict=True), 1):
        if not fits(reply, wanted, last):
            different.append(f"{number}. {asked!r}: {reply!r}, wanted {wanted!r}")
        last = reply
    assert not different, "\n".join(different)


def fits(reply: Any, wanted: Any, last: Any) -> bool:
    """True if a reply is as promised; `last` is the reply before it."""
    if wanted is ...:
        return bool(reply)
    if wanted == "an id":
        return isinstance(reply, bytes) and reply != last
    if wanted == "the same id":
        return bool(reply == last)
    if wanted == "nothing":
        return reply in ([], {}, None)
    if wanted == "3-1":
        return [entry[0] for entry in read(reply)] == [b"3-1"]
    if wanted == "1-1 and 3-1":
        claimed, new = read(reply)
        idle_ms = int(claimed[2])
        return (
            [claimed[:2], new] == [(b"1-1", {b"n": b"1"}), (b"3-1", {b"n": b"3"}, 0, 0)]
            and idle_ms >= 5000
            and int(claimed[3]) == 4
        )
    if isinstance(wanted, str) and wanted.endswith(" entries"):
        return f"{len(read(reply))} entries" == wanted
    return bool(reply == wanted)


def read(reply: Any) -> list[tuple[Any, ...]]:
    """The entries of a read, of all its streams: redis-py gives lists or a dict, by protocol."""
    parts = reply.values() if isinstance(reply, dict) else [part[1] for part in reply]
    flat = [entry for part in parts for entry in part]
    if flat and isinstance(flat[0], list):
        flat = [entry for entries in flat for entry in entries]
    return [tuple(entry) for entry in flat]


JOBS = 12


def work(client: Any, consumer: str, start: str, count: int) -> list[bytes]:
    """Read jobs of the group and acknowledge every third; the numbers of those acknowledged."""
    done = []
    for entry_id, fields in read(
        client.xreadgroup("workers", consumer, {"jobs": start}, count=count)
    ):
        if int(fields[b"n"]) % 3 == 0:
            client.xack("jobs", "workers", entry_id)
            done.append(fields[b"n"])
    return done


@pytest.mark.parametrize("way", ["SIGTERM", "SIGKILL"])
def test_no_job_is_lost_or_done_twice_over_a_restart(
    durable_server: Server, protocol: int, way: str
) -> None:
    with redis.Redis(port=durable_server.port, protocol=protocol) as client:
        client.xgroup_create("jobs", "workers", id="0", mkstream=True)
        with client.pipeline(transaction=False) as pipeline:
            for number in range(JOBS):
                pipeline.xadd("jobs", {"n": number}, maxlen=1000)
            ids = pipeline.execute()
        done = work(client, "alice", ">", JOBS // 2)
        durable_server.restart(way)
        done += work(client, "bob", ">", JOBS)
        taken: list[bytes] = []
        for consumer in ("alice", "bob"):
            assert client.xpending("jobs", "workers")["pending"] == JOBS - len(done) - len(taken)
            rows = client.xpending_range("jobs", "workers", "-", "+", 100, consumername=consumer)
            assert {row["times_delivered"] for row in rows} == {1}
            mine = [row["message_id"] for row in rows]
            claimed = client.xclaim("jobs", "workers", "carol", 0, mine)
            assert [entry_id for entry_id, _ in claimed] == mine
            client.xack("jobs", "workers", *mine)
            taken += [fields[b"n"] for _, fields in claimed]
        assert client.xautoclaim("jobs", "workers", "dave", 0) == [b"0-0", [], []]
        assert sorted(map(int, done + taken)) == list(range(JOBS))
        (group,) = client.xinfo_groups("jobs")
        assert (group["pending"], group["lag"], group["entries-read"]) == (0, 0, JOBS)
        assert [entry_id for entry_id, _ in client.xrange("jobs")] == ids


def test_asyncio_workers_share_the_jobs_over_a_restart(
    durable_server: Server, protocol: int
) -> None:
    async def worker(name: str, done: dict[int, str], halfway: asyncio.Event) -> None:
        """Until all is done; entries read before the restart come back from the history."""
        start = ">"
        async with redis.asyncio.Redis(port=durable_server.port, protocol=protocol) as client:
            while len(done) < 2 * JOBS:
                try:
                    reply = await client.xreadgroup(
                        "workers", name, {"jobs": start}, count=1, block=50
                    )
                    for entry_id, fields in read(reply):
                        await client.xack("jobs", "workers", entry_id)
                        done[int(fields[b"n"])] = name
                    start = ">" if not read(reply) else start
                except redis.ConnectionError:
                    start = "0"
                    await asyncio.sleep(POLL_S)
                if len(done) >= JOBS:
                    halfway.set()

    async def produce(numbers: range) -> None:
        async with redis.asyncio.Redis(port=durable_server.port, protocol=protocol) as client:
            for number in numbers:
                await client.xadd("jobs", {"n": number})

    async def everything(restart: Restart) -> dict[int, str]:
        async with redis.asyncio.Redis(port=durable_server.port, protocol=protocol) as client:
            await client.xgroup_create("jobs", "workers", id="0", mkstream=True)
        done: dict[int, str] = {}
        halfway = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for name in ("alice", "bob"):
                tasks.create_task(worker(name, done, halfway))
            await produce(range(JOBS))
            await halfway.wait()
            await restart()
            await produce(range(JOBS, 2 * JOBS))
        return done

    done = run_with_restarts(durable_server, everything)
    assert set(done) == set(range(2 * JOBS))
    with redis.Redis(port=durable_server.port, protocol=protocol) as client:
        assert client.xpending("jobs", "workers")["pending"] == 0


def deliver_to_a_blocked_reader(server: Server, protocol: int, append: Callable[[Any], Any]) -> Any:
    """The reply to a client in XREADGROUP BLOCK 0 after `append(client)` was called."""

    async def play() -> Any:
        async with (
            redis.asyncio.Redis(port=server.port, protocol=protocol) as reader,
            redis.asyncio.Redis(port=server.port, protocol=protocol) as writer,
        ):
            await writer.xgroup_create("s", "g", mkstream=True)
            waiting = asyncio.create_task(reader.xreadgroup("g", "alice", {"s": ">"}, block=0))
            async with asyncio.timeout(10):
                while (await writer.info("clients"))["blocked_clients"] != 1:
                    await asyncio.sleep(POLL_S)
                await append(writer)
                return await waiting

    return asyncio.run(play())


def test_a_blocked_reader_gets_all_appends_of_a_transaction(server: Server, protocol: int) -> None:
    async def append(client: Any) -> None:
        async with client.pipeline(transaction=True) as pipeline:
            pipeline.xadd("s", {"n": 1}, id="1-1")
            pipeline.xadd("s", {"n": 2}, id="2-1")
            await pipeline.execute()

    entries_read = read(deliver_to_a_blocked_reader(server, protocol, append))
    assert entries_read == [(b"1-1", {b"n": b"1"}), (b"2-1", {b"n": b"2"})]

"""redis-py's locks: released and extended by scripts, which the server knows without any Lua."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock
from tests.support.server import Server

from millstream.commands.admin.scripts import SCRIPTS

LOCKS: list[Any] = [redis.lock.Lock, redis.asyncio.lock.Lock]
RELEASE, EXTEND, REACQUIRE = (
    redis.lock.Lock.LUA_RELEASE_SCRIPT,
    redis.lock.Lock.LUA_EXTEND_SCRIPT,
    redis.lock.Lock.LUA_REACQUIRE_SCRIPT,
)
LONG_S = 1000


def sha1(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


@pytest.mark.parametrize("lock", LOCKS, ids=["sync", "asyncio"])
def test_every_script_of_the_installed_version_is_known(lock: Any) -> None:
    texts = [getattr(lock, name) for name in dir(lock) if name.startswith("LUA_")]
    assert len(texts) == 3
    assert {sha1(text).encode() for text in texts} <= SCRIPTS.keys()


CONVERSATION: list[tuple[object, ...]] = [
    ("EVALSHA", sha1(RELEASE), 1, "lock", "token"),
    ("SCRIPT", "EXISTS", sha1(RELEASE), sha1(EXTEND)),
    ("SCRIPT", "LOAD", RELEASE),
    ("SCRIPT", "EXISTS", sha1(RELEASE).upper(), sha1(EXTEND)),
    ("EVALSHA", sha1(RELEASE).upper(), 1, "lock", "token"),
    ("SET", "lock", "token"),
    ("EVALSHA", sha1(RELEASE), 1, "lock", "other"),
    ("EVALSHA", sha1(RELEASE), 1, "other", "token"),
    ("EVAL", EXTEND, 1, "lock", "token", 100_000, "0"),  # it has no expiry
    ("EVALSHA", sha1(EXTEND), 1, "lock", "other", 100_000, "0"),  # EVAL has loaded it
    ("PERSIST", "lock"),
    ("EVAL", REACQUIRE, 1, "lock", "other", 100_000),
    ("PERSIST", "lock"),
    ("EVAL", REACQUIRE, 1, "lock", "token", 100_000),
    ("EVAL", EXTEND, 1, "lock", "token", 100_000, "0"),
    ("EVAL", EXTEND, 1, "lock", "token", 100_000, "1"),
    ("EVAL", EXTEND, 1, "lock", "token", "x", "1"),
    ("EVAL", EXTEND, 1, "lock", "token", 2**63 - 1, "1"),
    ("PERSIST", "lock"),
    ("EVAL", RELEASE, 1, "lock", "token"),
    ("EXISTS", "lock"),
    ("SET", "lock", "token", "PX", 100_000),
    ("EVAL", REACQUIRE, 1, "lock", "token", -1),
    ("EXISTS", "lock"),
    ("XADD", "stream", "1-1", "f", "v"),
    ("EVAL", RELEASE, 1, "stream", "token"),
    ("EVAL", RELEASE, 0),
    ("SCRIPT", "FLUSH"),
    ("EVALSHA", sha1(RELEASE), 1, "lock", "token"),
]


def test_scripts_answer_as_on_redis(server: Server, redis_server: Server) -> None:
    def replies_of(each: Server) -> list[object]:
        with redis.Redis(port=each.port) as client:
            client.script_flush()
            client.config_resetstat()
            replies: list[object] = []
            for words in CONVERSATION:
                try:
                    replies.append(client.execute_command(*words))
                except redis.ResponseError as error:
                    replies.append(type(error))
            stats = client.info("stats")
            return [*replies, stats["keyspace_hits"], stats["keyspace_misses"]]

    assert replies_of(server) == replies_of(redis_server)


def test_scripts_run_in_a_transaction(server: Server) -> None:
    with redis.Redis(port=server.port) as client:
        pipe = client.pipeline()
        pipe.set("lock", "token")
        pipe.eval(RELEASE, 1, "lock", "other")
        pipe.evalsha(sha1(RELEASE), 1, "lock", "token")
        pipe.exists("lock")
        assert pipe.execute() == [True, 0, 1, 0]


def test_a_lock_is_held_extended_and_released(server: Server) -> None:
    with redis.Redis(port=server.port) as client:
        lock = client.lock("name", timeout=LONG_S)
        with lock:
            assert not client.lock("name").acquire(blocking=False)
            lock.extend(LONG_S)
            assert client.pttl("name") > LONG_S * 1000
            lock.extend(LONG_S, replace_ttl=True)
            lock.reacquire()
            assert 0 < client.pttl("name") <= LONG_S * 1000
        assert not client.exists("name")
        with pytest.raises(redis.exceptions.LockNotOwnedError), lock:
            client.set("name", "another owner")


def test_a_lock_in_asyncio(server: Server) -> None:
    async def program() -> None:
        async with redis.asyncio.Redis(port=server.port) as client:
            lock = client.lock("name", timeout=LONG_S)
            async with lock:
                await lock.extend(LONG_S)
                await lock.reacquire()
                assert await lock.owned()
            assert not await client.exists("name")

    asyncio.run(program())


def test_a_lock_survives_a_restart_and_its_script_is_reloaded(
    durable_server: Server,
) -> None:
    with redis.Redis(port=durable_server.port) as client:
        lock = client.lock("name", timeout=LONG_S)
        lock.acquire()
        lock.extend(LONG_S)
    durable_server.restart("SIGKILL")
    with redis.Redis(port=durable_server.port) as client:
        lock.redis = client
        assert client.pttl("name") > LONG_S * 1000
        assert client.script_exists(sha1(EXTEND)) == [False]
        lock.extend(LONG_S)
        lock.release()
        assert not client.exists("name")

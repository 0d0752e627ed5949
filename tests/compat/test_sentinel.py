"""Failover by the real Sentinel, unchanged, with redis-py's Sentinel client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError
from redis.sentinel import MasterNotFoundError
from tests.crash.planned_rounds import PlannedRounds
from tests.support.roles import PASSWORD, allowed_harm, in_role, refusals, rules, unused
from tests.support.sentinels import DEADLINE_S, NAME, Group, knows_everything, primary_port
from tests.support.waiting import wait_until

from millstream.client import Millstream


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """Replicas and Sentinels log in with the users of their roles."""
    users = tmp_path / "users.acl"
    lines = ["user default on nopass ~* &* +@all"]
    lines += [f"user {in_role(role)} {' '.join(rules(role))}" for role in ("replica", "Sentinel")]
    users.write_text("\n".join(lines))
    directives = {"aclfile": str(users), "masteruser": "replica", "masterauth": PASSWORD}
    login = f"sentinel auth-user {NAME} Sentinel\nsentinel auth-pass {NAME} {PASSWORD}\n"
    made = Group(tmp_path, directives, login=login)
    yield made
    made.stop()


def appended(client: Redis, value: int) -> bool:
    try:
        client.xadd("s", {"n": value})
    except (RedisConnectionError, ReadOnlyError, MasterNotFoundError, RedisError):
        return False
    return True


def test_sentinel_promotes_a_replica_when_the_primary_dies(group: Group) -> None:
    sentinel = group.sentinels.client()
    wait_until(lambda: knows_everything(sentinel), deadline_s=DEADLINE_S)
    client: Redis = sentinel.master_for(NAME, socket_timeout=5.0)
    for number in range(100):
        client.xadd("s", {"n": number})
    ms: Millstream = sentinel.master_for(
        NAME, redis_class=Millstream, protocol=3, decode_responses=True, socket_timeout=5.0
    )
    writer, stream = ms.writer("followed", "w"), ms.stream("followed")
    producer = ms.producer("followed", "p", linger=0)
    written = [writer.append({"n": number}) for number in range(3)]
    assert client.wait(2, 10_000) == 2
    old = group.servers[0]
    old.kill()
    written.append(writer.append({"n": 3}))  # waits for the new primary
    producer.append({"n": 4}).result(timeout=DEADLINE_S)
    assert [stream.read(DEADLINE_S)["n"] for _ in range(5)] == list("01234")  # type: ignore[index]
    assert [record.id for record in ms.trange("followed")][:4] == written
    for made in (writer, stream, producer):
        made.close()
    wait_until(lambda: primary_port(sentinel) not in (0, old.port), deadline_s=DEADLINE_S)
    wait_until(lambda: appended(client, 100), deadline_s=DEADLINE_S)
    assert client.xlen("s") >= 101
    assert [fields[b"n"] for _, fields in client.xrange("s", count=100)] == [
        b"%d" % number for number in range(100)
    ]
    old.start()  # Sentinel makes it a replica of the new primary
    back = Redis(port=old.port)
    wait_until(
        lambda: back.info("replication").get("master_link_status") == "up", deadline_s=DEADLINE_S
    )
    wait_until(lambda: back.xrange("s") == client.xrange("s"), deadline_s=DEADLINE_S)
    check_roles(group)


def check_roles(group: Group) -> None:
    called: set[str] = set()
    for server in group.servers:
        with server.client() as admin:
            called |= {name.removeprefix("cmdstat_") for name in admin.info("commandstats")}
            for role in ("replica", "Sentinel"):
                assert refusals(admin, role) == []
                assert allowed_harm(server, role) == []
    assert [unused(role, called) for role in ("replica", "Sentinel")] == [[], []]


DURABLE = {"replicas-durable": "1", "appendfsync": "always"}


@pytest.mark.parametrize("directives", [{}, DURABLE], ids=["default", "durable"])
def test_a_failover_on_request_loses_nothing_that_was_confirmed(
    tmp_path: Path, directives: dict[str, str]
) -> None:
    """The primary works and has load, and the replica that is promoted may be the slower one. The
    second promotion makes a server the primary that has handed over before."""
    rounds = PlannedRounds(tmp_path, directives)
    try:
        rounds.play()
        rounds.play()
        rounds.finish()
    finally:
        rounds.stop()

"""A journal of the version before: a server reads it, and writes to a new journal after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import redis
from tests.support.client import RawClient
from tests.support.data_directory import last_journal
from tests.support.journals import rewrite_as_version_2
from tests.support.replicas import Replicas, facts, has_same, is_up
from tests.support.resp import Reply
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.journal_format import read_head, sound_frames

REQUESTS = (
    "XADD s * f v",
    "XADD s * f 0123456789",
    "XGROUP CREATE s g 0",
    "XREADGROUP GROUP g c COUNT 1 STREAMS s >",
    "XREADGROUP GROUP g c COUNT 1 STREAMS s >",
    "SET k v",
    "TRESERVE r w 100000",
)
STATE = ("XRANGE s - +", "XPENDING s g", "GET k", "TPOSITION r")


def versions_of(path: Path) -> tuple[int, set[bool]]:
    """The version in a journal's header, and which forms the first effects of its frames have: True
    for those of the earlier version."""
    file = SystemDisk(path.parent).read(path.name)
    form = read_head(file).format
    frames = [payload for _, _, _, payload in sound_frames(file, form, form.header_size)]
    file.close()
    return path.read_bytes()[8], {payload.startswith(b"*") for payload in frames}


def state_of(client: RawClient) -> list[Reply]:
    return [client.call(*request.split()) for request in STATE]


def write(server: Server) -> list[Reply]:
    with server.client() as client:
        for request in REQUESTS:
            client.call(*request.split())
        return state_of(client)


def offset_of(client: redis.Redis) -> int:
    return int(facts(client)["master_repl_offset"])


def state_after_a_kill(server: Server) -> list[Reply]:
    server.kill()
    server.start()
    with server.client() as client:
        return state_of(client)


def test_a_new_journal_follows_one_of_the_version_before(
    new_server: Callable[..., Server],
) -> None:
    server = new_server().start()
    write(server)
    server.kill()
    journal = last_journal(server.directory)
    assert versions_of(journal) == (3, {False})
    rewrite_as_version_2(journal)
    server.start()
    written = write(server)
    assert state_after_a_kill(server) == written
    following = last_journal(server.directory)
    assert following != journal
    assert versions_of(journal) == (2, {True})
    assert versions_of(following) == (3, {False})
    server.rewrite_journal()
    assert not journal.exists()
    assert state_after_a_kill(server) == written


def test_a_replica_with_an_earlier_journal_has_equal_offsets(replicas: Replicas) -> None:
    primary, replica = replicas.start("a"), replicas.start("b")
    write(replicas.servers["a"])
    replicas.follow("b", "a")
    wait_until(has_same(primary, replica, "s"))
    server = replicas.servers["b"]
    server.kill()
    journal = last_journal(server.directory)
    rewrite_as_version_2(journal)
    server.start()
    replicas.follow("b", "a")
    wait_until(lambda: is_up(replica))
    first = [offset_of(primary), offset_of(replica)]

    def added() -> list[int]:
        now = [offset_of(primary), offset_of(replica)]
        return [offset - before for offset, before in zip(now, first, strict=True)]

    written = write(replicas.servers["a"])
    wait_until(has_same(primary, replica, "s"))
    wait_until(lambda: len(set(added())) == 1)
    assert added()[0] > 0
    assert state_after_a_kill(server) == written
    assert versions_of(journal) == (2, {True})

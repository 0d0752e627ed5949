"""`millstream cluster backup` and `restore`: members of a shard, and the nodes of one machine."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from redis.cluster import RedisCluster
from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.member_servers import MemberServers, node_id
from tests.support.resp import Simple
from tests.support.shards import Shards
from tests.support.stored_cluster import stored, write

from millstream.__main__ import main
from millstream.cli_error import CliError
from millstream.server.backup.backup_cli import Outcome, SourceLost
from millstream.server.backup.sources import Copied
from millstream.server.cluster import backup_sources, cluster_backup
from millstream.server.cluster.backup_sources import StoredSource
from millstream.server.cluster.cluster_backup import ShardState, back_up
from millstream.server.cluster.cluster_view import ClusterView, view_of
from millstream.server.cluster.slot_map import read_map
from millstream.server.cluster.store.records import (
    BACKUP_LOCK,
    MoveRecord,
    ShardRecord,
    SlotRanges,
    Step,
    encode,
)
from millstream.server.cluster.store.store import Change, Contents
from millstream.server.cluster.store.store_opening import StoreSettings, open_store
from millstream.server.cluster.store_cli import create
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import load_manifest

numbers = count(1)


def call(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["cluster", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


def node_in(folder: Path) -> str:
    manifest = load_manifest(SystemDisk(folder))
    assert manifest is not None
    return manifest.node


@pytest.fixture
def settings(etcd: Etcd) -> StoreSettings:
    """Those of a cluster of two shards, none of whose nodes run."""
    found = StoreSettings(f"copied{next(numbers)}", etcd.urls)
    asyncio.run(create(open_store(found), 2, 3, 1))
    return found


@pytest.fixture
def shard(tmp_path: Path, etcd: Etcd) -> Iterator[MemberServers]:
    made = MemberServers(tmp_path, etcd)
    yield made.start()
    made.kill()


def test_a_backup_of_members_becomes_a_new_cluster(
    shard: MemberServers, etcd: Etcd, tmp_path: Path
) -> None:
    with RawClient(shard.wait_for_followers().port) as client:
        assert client.call("ACL", "SETUSER", "ada", "on", ">word", "~*", "+@all") == Simple("OK")
        client.call("ACL", "SETUSER", "backup", "on", ">word", "+backup", "+cluster|myid")
        for number in range(100):
            client.call("XADD", "s", "*", "n", str(number))
        client.call("XGROUP", "CREATE", "s", "g", "0")
        client.call("XREADGROUP", "GROUP", "g", "c", "COUNT", "10", "STREAMS", "s", ">")
        entries, pending = client.call("XRANGE", "s", "-", "+"), client.call("XPENDING", "s", "g")
    where = ["--name", shard.settings.name, "--etcd", etcd.urls]
    url = ["--url", "redis://backup:word@anywhere"]
    assert "copy: 1 shard" in call("backup", tmp_path / "copy", *where, *url)
    assert BACKUP_LOCK not in stored(shard.settings).values
    old = shard.view()
    shard.kill()

    new = ["--name", f"{shard.settings.name}-new", "--etcd", etcd.urls]
    fewer = call("restore", tmp_path / "copy", tmp_path / "new", *new, "--members", "1", code=1)
    assert "has --durable 1, which needs more than 1 member: give --durable 0, too" in fewer
    call("restore", tmp_path / "copy", tmp_path / "new", *new)
    again = call("restore", tmp_path / "copy", tmp_path / "other", *new, code=1)
    assert "etcd has a cluster with this name" in again
    assert not (tmp_path / "other").exists()
    restored = MemberServers(tmp_path / "new", etcd, restored=new[1])
    try:
        first = restored.start().wait_for_followers()
        view = restored.view()
        record = view.shards["s1"].record
        assert record.term > old.shards["s1"].record.term + 1
        assert view.map == old.map._replace(epoch=old.map.epoch + 1)
        assert set(record.members) == set(map(node_id, restored.servers))
        assert set(record.members).isdisjoint(old.shards["s1"].record.members)
        first.kill()
        late = call("backup", tmp_path / "late", *new)
        assert "late: 1 shard" in late
        assert "waiting up to 20 seconds for a primary of shard s1" in late
        second = restored.wait_for_primary(first)
        with RawClient(second.port) as client:
            assert client.call("AUTH", "ada", "word") == Simple("OK")
            assert client.call("XRANGE", "s", "-", "+") == entries
            assert client.call("XPENDING", "s", "g") == pending
            assert isinstance(client.call("XADD", "s", "*", "n", "new"), bytes)
        first.start()
        restored.wait_for_followers()
    finally:
        restored.kill()


def test_one_backup_at_a_time(settings: StoreSettings) -> None:
    one, other = (StoredSource(settings, "redis://x", 1) for _ in range(2))
    with one.held():
        value = stored(settings).values[BACKUP_LOCK]
        assert value.lease, "the lock ends with its program"
        running = r"is being made by .* process \d+: wait for its end"
        with pytest.raises(CliError, match=running), other.held():
            raise AssertionError("two locks")
        one.check()
    assert BACKUP_LOCK not in stored(settings).values
    with other.held():
        asyncio.run(open_store(settings).revoke(other._lease))
        with pytest.raises(CliError, match="the lock of this backup has ended"):
            other.check()
    with other.held():
        write(settings, Change("map", encode(SlotRanges(2, ((0, 16383, "s1"),)))))
        with pytest.raises(CliError, match="slots have moved"):
            other.check()


def test_a_backup_waits_while_slots_are_handed_over(
    settings: StoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = MoveRecord(((0, 9),), "s1", "s2", Step.HANDING, 1)
    write(settings, Change("move/1", encode(move)))
    looks = []

    def look(contents: Contents) -> ClusterView:
        looks.append(view_of(contents))
        return looks[-1] if len(looks) < 4 else looks[-1]._replace(moves={})

    with monkeypatch.context() as patch:
        patch.setattr(backup_sources, "AGAIN_S", 0)
        patch.setattr(backup_sources, "view_of", look)
        with StoredSource(settings, "redis://x", 1).held():
            assert len(looks) == 4
    monkeypatch.setattr(backup_sources, "STEADY_S", 0)
    late = "the move 1 has been handing over slots"
    with pytest.raises(CliError, match=late), StoredSource(settings, "redis://x", 1).held():
        raise AssertionError("slots have two owners")
    assert BACKUP_LOCK not in stored(settings).values


def test_what_is_incomplete_is_no_backup(
    settings: StoreSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_sources, "STEADY_S", 0)
    dest = tmp_path / "copy"
    where = ["--name", settings.name, "--etcd", settings.urls]
    failed = call("backup", dest, *where, code=1)
    assert "shard s1 has no primary that runs: see `millstream cluster status`" in failed
    assert list(tmp_path.iterdir()) == []
    change = Change("shard/s3", encode(ShardRecord("d" * 40, 3, "e" * 40, ("e" * 40,), 1, 0)))
    write(settings, change)
    source = StoredSource(settings, "redis://x", 1)
    with source.held():  # s3 has no slots, and its nodes need not run
        assert source.shards() == ["s1", "s2"]
    dest.mkdir()
    assert "is not a backup of a cluster" in call("restore", dest, tmp_path / "new", code=1)


@pytest.mark.parametrize(("patience_s", "attempts"), [(0, 1), (2, 5)])
def test_a_primary_that_stays_away_is_not_waited_for_longer(
    patience_s: float, attempts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, tried = 100.0, 0

    def wait(duration_s: float) -> None:
        nonlocal now_s
        now_s += duration_s

    class Source:
        name, epoch = "", 1

        def __init__(self) -> None:
            self.patience_s = patience_s

        held = nullcontext

        def shards(self) -> list[str]:
            return ["s1"]

        def state(self, shard: str) -> ShardState:
            return ShardState(shard, 1, "a" * 40, (), 1, 0)

        def copy(self, state: ShardState, disk: SystemDisk) -> tuple[Copied, dict[str, Any]]:
            nonlocal tried
            tried += 1
            raise SourceLost(Outcome.REFUSED, "Connection refused")

        def users(self) -> None: ...
        def check(self) -> None: ...

    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=wait)
    monkeypatch.setattr(cluster_backup, "time", clock)
    with pytest.raises(SourceLost, match="Connection refused"):
        back_up(Source(), tmp_path / "copy", "none")
    assert tried == attempts
    assert list(tmp_path.iterdir()) == []


def state(shards: Shards) -> dict[bytes, bytes]:
    with RedisCluster("127.0.0.1", shards.ports()[0]) as client:
        return {key: client.get(key) for key in client.keys(target_nodes="all")}


def test_a_backup_of_one_machine(tmp_path: Path, etcd: Etcd) -> None:
    data, dest = tmp_path / "data", tmp_path / "copy"
    old = Shards(data, {"appendfsync": "no"}, count=2)
    old.start()
    with RedisCluster("127.0.0.1", old.ports()[0]) as client:
        for number in range(40):
            client.set(f"k{number}", number)
    with old.node(1) as node:
        assert node.line("ACL SETUSER ada on >word ~* +@all") == Simple("OK")
    before = state(old)
    left = dest.with_name("copy.partial") / "s1.partial"  # by a program that was killed
    left.mkdir(parents=True)
    (left / "manifest").write_bytes(b"?")
    found = json.loads(call("backup", dest, "--dir", data, "--json"))
    assert [row["shard"] for row in found["shards"]] == ["s1", "s2"]
    assert sum(row["keys"] for row in found["shards"]) == len(before) == 40
    assert not left.exists()
    assert "not empty" in call("backup", dest, "--dir", data, code=3)
    old.stop()
    stopped = json.loads(call("backup", tmp_path / "stopped", "--dir", data, "--json"))
    assert [row["keys"] for row in stopped["shards"]] == [row["keys"] for row in found["shards"]]

    call("restore", dest, tmp_path / "new")
    old_map, new_map = read_map(data), read_map(tmp_path / "new")
    assert old_map is not None
    assert new_map is not None
    assert (new_map.epoch, new_map.term) == (old_map.epoch + 1, old_map.term + 1)
    assert {one.node for one in new_map.shards}.isdisjoint(one.node for one in old_map.shards)
    new = Shards(tmp_path / "new", {"appendfsync": "no"}, count=2)
    new.start()
    assert state(new) == before
    with new.node(2) as node:
        assert node.line("AUTH ada word") == Simple("OK")
    new.stop()
    restore_into_etcd(dest, tmp_path, etcd)
    refuse_damage(dest, tmp_path / "x")


def restore_into_etcd(backup: Path, folder: Path, etcd: Etcd) -> None:
    """The data of one machine for members of shards."""
    assert "need --name" in call("restore", backup, folder / "x", "--members", "3", code=2)
    where = ["--name", f"machine{next(numbers)}", "--etcd", etcd.urls]
    wrong = [*where, "--members", "2", "--durable", "2"]
    assert "needs more than 2 members" in call("restore", backup, folder / "x", *wrong, code=1)
    call("restore", backup, folder / "many", *where, "--members", "2", "--durable", "1")
    view = view_of(stored(StoreSettings(where[1], etcd.urls)))
    assert [row[:2] for row in view.map.ranges] == [(0, 8191), (8192, 16383)]
    for name, shard in view.shards.items():
        assert (shard.record.size, shard.record.durable) == (2, 1)
        folders = [folder / "many" / f"{name}-{number}" for number in (1, 2)]
        assert [node_in(one) for one in folders] == list(shard.record.members)


def refuse_damage(backup: Path, out: Path) -> None:
    (backup / "s1").rename(backup / "s3")
    assert "s1 is missing: copy the backup again" in call("restore", backup, out, code=1)
    shutil.copytree(backup / "s2", backup / "s1")
    assert "s1 is of another backup or shard" in call("restore", backup, out, code=1)
    description = backup / "cluster-backup.json"
    description.write_text(description.read_text().replace("8191", "8192"))
    assert "slots 8192 to 16383 are wrong" in call("restore", backup, out, code=1)
    assert not list(out.parent.glob("x*"))

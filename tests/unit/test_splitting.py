"""`millstream cluster split`: every key is in the copy, at the node that owns its slot."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.in_process import NOW_MS, InProcessServer

from millstream.errors import DataError
from millstream.server.cluster import splitting
from millstream.server.cluster.slot_map import Shard, read_map
from millstream.server.cluster.splitting import Part, split
from millstream.server.repair.destination import Unusable
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import load_manifest
from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream

SINGLE = Shard("", 1, "", "", ())  # a server that is no node


def filled() -> InProcessServer:
    server = InProcessServer()
    client = server.player()
    for number in range(40):
        for entry in range(1, 4):
            client.call(f"XADD s{number} {entry}-0 f {number}")
        client.call(f"XGROUP CREATE s{number} g 0")
        client.call(f"XREADGROUP GROUP g c COUNT 1 STREAMS s{number} >")
        client.call(f"SET k{number} v{number}")
    client.call("PEXPIREAT k7 99999999999999")
    client.call("APPEND k8 more")
    client.call("TGROUP s1 g TIMEOUT 1000 DEADLETTER {s1}dead")
    client.call("TRESERVE s2 writer 1 LEASE 1000")
    return server


def written(folder: Path, keyspace: Keyspace) -> Path:
    folder.mkdir()
    splitting._write_node(SystemDisk(folder), Part(SINGLE, keyspace), NOW_MS)
    return folder


def contents(keyspace: Keyspace) -> dict[bytes, object]:
    """The value and the expiry of each key."""
    db = keyspace.databases[0]
    db.settle_all()
    found: dict[bytes, object] = {}
    for key, value in db.table.items():
        shown = dump_stream(value)[0] if isinstance(value, Stream) else bytes(value)
        found[key] = (str(shown), db.expiry_ms(key))
    return found


def parts_of(folder: Path) -> list[Keyspace]:
    slot_map = read_map(folder)
    assert slot_map is not None
    found = []
    for shard in slot_map.shards:
        keyspace = splitting._load(folder / shard.folder, NOW_MS)
        owned = set(shard.slots())
        assert all(cluster_slot_of(key) in owned for key in keyspace.databases[0].table)
        manifest = load_manifest(SystemDisk(folder / shard.folder))
        assert manifest is not None
        assert manifest.node == shard.node
        found.append(keyspace)
    return found


def test_each_key_goes_to_the_owner_of_its_slot(tmp_path: Path) -> None:
    single = written(tmp_path / "single", filled().keyspace)
    before = splitting._load(single, NOW_MS)
    counts = split(single, tmp_path / "three", 3)
    assert sum(counts) == len(before.databases[0])
    assert all(counts)
    three = parts_of(tmp_path / "three")
    assert {key: one for part in three for key, one in contents(part).items()} == contents(before)
    assert all(part.incarnation == before.incarnation for part in three)
    # Again, from three nodes to two.
    split(tmp_path / "three", tmp_path / "two", 2)
    two = parts_of(tmp_path / "two")
    assert {key: one for part in two for key, one in contents(part).items()} == contents(before)


def test_data_that_no_cluster_can_have_is_refused(tmp_path: Path) -> None:
    server = filled()
    client = server.player()
    client.call("TGROUP s3 g TIMEOUT 1000 DEADLETTER dead")
    single = written(tmp_path / "single", server.keyspace)
    with pytest.raises(DataError, match=r"dead letter stream of 1 group is .*: g of s3"):
        split(single, tmp_path / "out", 3)
    server = InProcessServer()
    client = server.player()
    client.call("SELECT 4")
    client.call("SET k v")
    other = written(tmp_path / "other", server.keyspace)
    with pytest.raises(DataError, match="has keys in database 4"):
        split(other, tmp_path / "out", 3)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no data of a server\Z"):
        split(tmp_path / "empty", tmp_path / "out", 3)
    (tmp_path / "empty/cluster-backup.json").touch()
    with pytest.raises(DataError, match="it is the backup of a cluster, which `millstream cluster"):
        split(tmp_path / "empty", tmp_path / "out", 3)
    assert not (tmp_path / "out").exists()


def test_a_copy_replaces_nothing(tmp_path: Path) -> None:
    single = written(tmp_path / "single", filled().keyspace)
    out = tmp_path / "out"
    out.mkdir()
    (out / "file").touch()
    with pytest.raises(Unusable, match="is not empty"):
        split(single, out, 3)
    assert [path.name for path in out.iterdir()] == ["file"]


def test_nodes_with_a_supervisor_are_not_split(tmp_path: Path) -> None:
    single = written(tmp_path / "single", filled().keyspace)
    split(single, tmp_path / "two", 2)
    supervisor = SystemDisk(tmp_path / "two")
    supervisor.lock()  # its nodes may be between two starts
    with pytest.raises(DataError, match="stop that one, or split what `millstream cluster"):
        split(tmp_path / "two", tmp_path / "three", 3)
    supervisor.unlock()
    assert sum(split(tmp_path / "two", tmp_path / "three", 3)) == len(contents_of_all(tmp_path))


def test_the_users_of_nodes_are_copied(tmp_path: Path) -> None:
    single = written(tmp_path / "single", filled().keyspace)
    (single / "users.acl").write_text("user other on nopass\n")  # of no directive of the nodes
    split(single, tmp_path / "two", 2)
    users = tmp_path / "two" / "users.acl"
    assert not users.exists()
    users.write_text("user default on >secret ~* &* +@all\n")
    split(tmp_path / "two", tmp_path / "three", 3)
    copy = tmp_path / "three" / "users.acl"
    assert copy.read_text() == users.read_text()
    assert copy.stat().st_mode & 0o777 == 0o600


def contents_of_all(folder: Path) -> dict[bytes, object]:
    return {key: one for part in parts_of(folder / "two") for key, one in contents(part).items()}

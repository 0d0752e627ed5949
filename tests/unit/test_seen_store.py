"""The file with what a node has seen last in the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import StartError
from millstream.server.cluster.cluster_view import view_of
from millstream.server.cluster.member_node import open_member
from millstream.server.cluster.store.records import (
    Format,
    Holder,
    NodeRecord,
    ShardChange,
    ShardRecord,
    SlotRanges,
    encode,
)
from millstream.server.cluster.store.seen_store import SeenStore
from millstream.server.cluster.store.store import Contents, Value
from millstream.server.config.loading import load

A, B, C = "a" * 40, "b" * 40, "c" * 40
RECORD = ShardRecord("f" * 40, 4, A, (A, B), 3, 1)


def contents(**others: bytes) -> Contents:
    values = {
        "config": encode(Format(1)),
        "map": encode(SlotRanges(2, ((0, 16383, "s1"),))),
        "shard/s1": encode(RECORD),
        "change/s1": encode(ShardChange(C, B)),
        "lease/s1": encode(Holder(A, 4)),
        "election/s1": encode(Holder(B, 5)),
        "secret": b"0123",
        "users": b"user \xff on\n",
    }
    nodes = {f"node/{one}": encode(NodeRecord("h", 1, 0, "", "", "", "")) for one in (A, B, C)}
    found = {name: Value(data, 9, 7) for name, data in (values | nodes | others).items()}
    return Contents(30, found)


def keep(store: SeenStore, found: Contents) -> bool:
    """As a node does when its disk works."""
    return not store.note(found) or store.write()


def test_a_node_sees_again_what_it_has_kept(tmp_path: Path) -> None:
    path = tmp_path / "etcd.json"
    assert SeenStore(path, "prod").load() is None
    assert keep(SeenStore(path, "prod"), contents())
    assert path.stat().st_mode & 0o777 == 0o600
    found = SeenStore(path, "prod").load()
    assert found is not None
    assert found.values["users"] == Value(b"user \xff on\n", 0, 0)
    assert found.values["secret"] == Value(b"0123", 0, 0)
    view = view_of(found)
    assert view.shards["s1"].record == RECORD
    assert view.changes["s1"].record == ShardChange(C, B)
    assert (view.holders, view.candidates) == ({}, {})
    assert view.nodes.keys() == {A, B, C}


def test_a_directory_is_that_of_one_cluster(tmp_path: Path) -> None:
    """A node of another cluster would bring its data, and lose what it has seen."""
    where = ["--dir", str(tmp_path), "--cluster-etcd", "http://127.0.0.1:1", "--cluster-name"]
    assert keep(SeenStore(tmp_path / "etcd.json", "prod"), contents())
    with pytest.raises(StartError, match="a node of the cluster prod, not of other"):
        open_member(load(None, [*where, "other"]), lambda: False, lambda: 0)
    open_member(load(None, [*where, "prod"]), lambda: False, lambda: 0)
    for damaged in ("", "[]", "{}", '{"cluster": 3}'):
        (tmp_path / "etcd.json").write_text(damaged)
        open_member(load(None, [*where, "other"]), lambda: False, lambda: 0)


def test_members_that_do_not_run_keep_their_addresses(tmp_path: Path) -> None:
    """Also across a restart. C is no member."""
    path = tmp_path / "etcd.json"
    keep(SeenStore(path, "prod"), contents())
    store = SeenStore(path, "prod")
    store.load()
    less = contents()
    for one in (A, B, C):
        del less.values[f"node/{one}"]  # type: ignore[attr-defined]
    keep(store, less)
    found = SeenStore(path, "prod").load()
    assert found is not None
    assert view_of(found).nodes.keys() == {A, B}


def test_the_file_is_written_only_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "etcd.json"
    store = SeenStore(path, "prod")
    keep(store, contents())
    path.unlink()
    assert keep(store, contents(**{"lease/s1": encode(Holder(B, 4))}))
    assert not path.exists()
    keep(store, contents(secret=b"4567"))
    assert path.exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "it is damaged"),
        ("[]", "it is damaged"),
        ('{"version":2,"cluster":"prod","revision":1,"values":{}}', "it has version 2"),
        ('{"version":1,"cluster":"test","revision":1,"values":{}}', "it is of the cluster test"),
        ('{"version":1,"cluster":"prod","revision":"1","values":{}}', "it is damaged"),
        ('{"version":1,"cluster":"prod","revision":1,"values":{"a":1}}', "it is damaged"),
    ],
)
def test_a_file_of_no_use_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, problem: str
) -> None:
    path = tmp_path / "etcd.json"
    path.write_text(text)
    assert SeenStore(path, "prod").load() is None
    assert problem in caplog.text


def test_a_file_that_cannot_be_written_is_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SeenStore(tmp_path / "missing" / "etcd.json", "prod")
    assert not keep(store, contents())
    assert not keep(store, contents())
    assert caplog.text.count("cannot be written") == 1
    (tmp_path / "missing").mkdir()
    assert keep(store, contents())

"""`millstream cluster init` and `status` for clusters whose map is in etcd."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.etcd import Etcd
from tests.support.shards import free_range
from tests.support.stored_cluster import cluster_command, stored, stored_view, write

from millstream.__main__ import main
from millstream.server.cluster.cluster_view import view_of
from millstream.server.cluster.reshaping import reshaped
from millstream.server.cluster.store.records import (
    Holder,
    NodeRecord,
    ShardChange,
    ShardRecord,
    SlotRanges,
    decode,
    encode,
)
from millstream.server.cluster.store.store import Change, Compare
from millstream.server.cluster.store.store_opening import StoreSettings, open_store

A, B, C = "a" * 40, "b" * 40, "c" * 40
Run = Callable[..., Result]
Carry = Callable[[ShardRecord, ShardChange], ShardRecord | None]
numbers = count(1)


@pytest.fixture
def settings(etcd: Etcd) -> StoreSettings:
    return StoreSettings(f"stored{next(numbers)}", etcd.urls)


@pytest.fixture
def run(settings: StoreSettings) -> Run:
    return partial(cluster_command, settings)


def test_init_divides_the_slots(run: Run, settings: StoreSettings) -> None:
    done = run("init", "--shards", "3")
    assert done.exit_code == 0, done.output
    assert "3 shards of 3 members; a confirmed write is on 2 disks" in done.output
    values = stored(settings).values
    assert set(values) == {"config", "map", "shard/s1", "shard/s2", "shard/s3"}
    ranges = ((0, 5460, "s1"), (5461, 10922, "s2"), (10923, 16383, "s3"))
    assert decode(SlotRanges, values["map"].data, "map") == (1, ranges)
    shards = [decode(ShardRecord, values[f"shard/s{n}"].data, "x") for n in (1, 2, 3)]
    assert {shard._replace(id="") for shard in shards} == {ShardRecord("", 0, "", (), 3, 1)}
    assert len({shard.id for shard in shards}) == 3
    again = run("init", "--shards", "2")
    assert again.exit_code == 1
    assert "etcd has a cluster with this name" in again.output
    assert stored(settings).values == values


def test_status_shows_what_is_missing(run: Run, settings: StoreSettings) -> None:
    absent = run("status").output
    assert "etcd has no cluster with this name" in absent
    assert "--from-nodes if etcd has lost its data" in absent
    assert run("init", "--shards", "10", "--members", "2", "--durable", "0").exit_code == 0
    lines = run("status").output.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [f"s{number}" for number in range(1, 11)]
    assert all("2 members missing" in line for line in lines[1:])
    nodes = [NodeRecord(f"10.0.0.{n}", 6455, 0, "", "", "0.1.0", "s1") for n in (1, 2)]
    shard = ShardRecord("c" * 40, 4, A, (A, B), 2, 1)
    complete = [
        Change("shard/s1", encode(shard)),
        Change("lease/s1", encode(Holder(A, 4))),
        *(Change(f"node/{n}", encode(node)) for n, node in zip((A, B), nodes, strict=True)),
    ]
    write(settings, Change("map", encode(SlotRanges(2, ((0, 16383, "s1"),)))), *complete)
    others = [Change(f"shard/s{number}", None) for number in range(2, 11)]
    write(settings, *others)
    good = run("status")
    assert good.exit_code == 0, good.output
    rows = [line.split() for line in good.output.splitlines()[1:]]
    assert rows == [
        ["s1", "4", "primary", "online", "10.0.0.1:6455", "-", A, "0-16383"],
        ["s1", "4", "replica", "online", "10.0.0.2:6455", "-", B, "0-16383"],
    ]
    zoned = [node._replace(zone="west") for node in nodes]
    for zones, has_warning in ((zoned, True), ([zoned[0], nodes[1]], False)):
        changes = [Change(f"node/{n}", encode(one)) for n, one in zip((A, B), zones, strict=True)]
        write(settings, *changes)
        assert run("status").exit_code == 0
        warning = "warning: all members of shard s1 are in zone west"
        assert (warning in run("status").output) is has_warning
    for change, shown in (
        (Change("lease/s1", encode(Holder(A, 3))), "no lease"),
        (Change("lease/s1", None), "no lease"),
        (Change(f"node/{B}", None), "not running"),
        (Change("shard/s1", encode(shard._replace(members=(A,)))), "1 member missing"),
    ):
        write(settings, *complete)
        write(settings, change)
        found = run("status")
        assert (found.exit_code, shown in found.output) == (1, True), found.output
        described = json.loads(run("status", "--json").output)
        assert described["shards"][0]["term"] == 4
    write(settings, *complete, Change(f"node/{C}", encode(nodes[0]._replace(is_ahead=True))))
    found = run("status")
    assert (found.exit_code, "etcd is old" in found.output) == (1, True)
    assert "warning: etcd has an older state than 1 node has seen: it was restored" in found.output
    write(settings, Change(f"node/{C}", None))
    without_slots = [Change("shard/s2", encode(ShardRecord("d" * 40, 3, C, (C,), 2, 1)))]
    write(settings, *complete, *without_slots)
    found = run("status")
    assert (found.exit_code, "1 member missing" in found.output) == (0, True), found.output
    write(settings, Change("shard/s1", b'{"term":"4"}'))
    assert "shard/s1 in etcd has no members" in run("status").output
    write(settings, Change("config", b'{"version":2}'))
    assert "version 2, which this program does not know" in run("status").output


@contextmanager
def primary(settings: StoreSettings, carry_out: Carry) -> Iterator[None]:
    """Carries out orders as the primary of a shard does, in a thread."""
    over = threading.Event()

    async def work() -> None:
        store = open_store(settings)
        while not over.is_set():
            view = view_of(await store.read())
            for name, found in view.changes.items():
                record = carry_out(view.shards[name].record, found.record)
                changes = [Change(f"change/{name}", None)]
                changes += [Change(f"shard/{name}", encode(record))] if record else []
                await store.commit([Compare(f"change/{name}", found.version)], changes)
            await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def shard(run: Run, settings: StoreSettings) -> ShardRecord:
    """That of a cluster whose nodes A, B and C run; C is a member of no shard."""
    assert run("init", "--shards", "1", "--members", "2").exit_code == 0
    record = ShardRecord("c" * 40, 4, A, (A, B), 2, 1)
    nodes = [NodeRecord("10.0.0.1", 6455, 0, "", "", "0.1.0", "") for _ in range(3)]
    changes = [Change(f"node/{n}", encode(node)) for n, node in zip((A, B, C), nodes, strict=True)]
    write(settings, Change("shard/s1", encode(record)), *changes)
    return record


def stored_shard(settings: StoreSettings) -> ShardRecord:
    return stored_view(settings).shards["s1"].record


def obey(record: ShardRecord, change: ShardChange) -> ShardRecord:
    return reshaped(record, change, {})


@pytest.mark.usefixtures("shard")
def test_members_change_when_the_primary_has_obeyed(run: Run, settings: StoreSettings) -> None:
    waiting = run("status").output.splitlines()[-1].split()
    assert waiting == ["-", "-", "-", "online", "10.0.0.1:6455", "-", C, "-"]
    with primary(settings, obey):
        added = run("add", "s1", C[:8])
        assert (added.exit_code, added.output) == (0, "shard s1 has its new members\n")
        assert stored_shard(settings).members == (A, B, C)
        assert run("remove", "s1", B).exit_code == 0
        assert stored_shard(settings).members == (A, C)
        assert run("replace", C, B).exit_code == 0
    assert stored_shard(settings)[1:] == (7, A, (A, B), 2, 1)
    assert not stored_view(settings).changes


def test_an_order_without_effect_is_withdrawn(
    run: Run, settings: StoreSettings, shard: ShardRecord
) -> None:
    late = run("replace", B, C, "--timeout", "0.5")
    assert late.exit_code == 1
    assert "nothing has changed: within 0.5 s" in late.output
    write(settings, Change("change/s1", encode(ShardChange(C, ""))))
    assert "being changed at this moment" in run("add", "s1", C).output
    write(settings, Change("change/s1", None))
    with primary(settings, lambda record, change: None):
        assert "has refused this" in run("add", "s1", C).output
    assert stored_shard(settings) == shard
    assert not stored_view(settings).changes
    for words, reason in (
        ("remove s1 " + A, "is its primary: use CLUSTER FAILOVER"),
        ("remove s1 " + B, "it needs 2 to 16 members"),
        ("remove s2 " + B, "there is no shard s2: the cluster has s1"),
        ("remove s1 " + C, "is not one of its members"),
        ("add s1 " + B, "is a member of a shard already"),
        ("add s1 dddd", "no node of the cluster has an ID that begins with dddd"),
        (f"replace {C} {B}", "is not a member of a shard"),
    ):
        refused = run(*words.split())
        assert (refused.exit_code, reason in refused.output) == (1, True), refused.output
    write(settings, Change(f"node/{C}", None))
    assert "no node of the cluster" in run("add", "s1", C).output


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("init --shards 2 --name a --etcd http://x:0y", "the port in http://x:0y is not a number"),
        ("init --shards 2 --name a --etcd ftp://x", "ftp://x is not a URL of etcd"),
        ("init --shards 2 --name a/b --etcd http://127.0.0.1:1", "'a/b' is not a valid name"),
        ("init --shards 101 --name a --etcd http://127.0.0.1:1", "1<=x<=100"),
        ("init --shards 1 --members 2 --durable 2 --name a --etcd x", "more than 2 members"),
        ("status --name a --etcd http://127.0.0.1:FREE", "FREE: Connection refused\n"),
        ("status --name a --etcd x --etcd-user u", "give both the user of etcd and"),
        ("status --name a --etcd x --etcd-user u --etcd-password-file /no", "cannot read /no"),
        ("status --name a --etcd https://x --etcd-cacert /no", "cannot read /no"),
        ("status --name a --etcd https://x --etcd-cert c", "give both the certificate"),
        ("status --name a --etcd x --etcd-cert c --etcd-key k", "needs a URL with https://"),
        ("status --name a --etcd https://x --etcd-cert /no --etcd-key k", "cannot read /no"),
        (
            "status --name a --etcd https://x --etcd-cert FILE --etcd-key FILE",
            "not a certificate",
        ),
        ("status --dir x --name a --etcd x", "Give either --dir"),
        ("status", "Give either --dir"),
    ],
)
def test_wrong_options_are_refused(options: str, reason: str, tmp_path: Path) -> None:
    port = str(free_range(1))
    words = options.replace("FREE", port).replace("FILE", __file__).split()
    done = CliRunner().invoke(main, ["cluster", *words])
    assert done.exit_code in (1, 2)
    assert reason.replace("FREE", port) in done.output


@pytest.mark.parametrize(
    "words",
    ["init --shards 2", "status --name a", "move 1 s2 --etcd x", "backup D --name a", "rebalance"],
)
def test_a_command_without_its_cluster_is_wrong_usage(words: str) -> None:
    done = CliRunner().invoke(main, ["cluster", *words.split()])
    assert done.exit_code == 2, done.output
    assert "needs --name and --etcd" in done.output

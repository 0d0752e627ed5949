"""Selections of a snapshot: bounds from options, and a plan that follows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.snapshots import Stream, publish, write_base, write_snapshot

from millstream.pipeline import snapshot_plan as planning
from millstream.pipeline.files import Folder
from millstream.pipeline.selection import FIRST, LAST, Selection
from millstream.pipeline.source_options import SCAN, OptionError, SourceOptions
from millstream.storage.files.manifest import Manifest
from millstream.storage.keyspace.cluster_slots import cluster_slot_of

MAX = 2**64 - 1


def select(**options: str) -> Selection:
    return Selection.of(SourceOptions(options, SCAN), False)


OPTIONS = [
    ({}, FIRST, LAST),
    ({"startId": "5-7"}, (5, 7), LAST),
    ({"startId": "5.7"}, (5, 7), LAST),
    ({"startId": "5"}, (5, 0), LAST),
    ({"startId": "(5"}, (5, 1), LAST),
    ({"startId": f"(5-{MAX}"}, (6, 0), LAST),
    ({"endId": "5"}, FIRST, (5, MAX)),
    ({"endId": "(5"}, FIRST, (5, MAX - 1)),
    ({"endId": "(5-0"}, FIRST, (4, MAX)),
    ({"startId": "+"}, LAST, LAST),
    ({"endId": "-"}, FIRST, FIRST),
    ({"startId": "-", "endId": "+"}, FIRST, LAST),
    ({"startingTimestamp": "5"}, (5, 0), LAST),
    ({"endingTimestamp": "5"}, FIRST, (5, MAX)),
    ({"startingTimestamp": "1970-01-01T00:00:00.0015"}, (2, 0), LAST),
    ({"endingTimestamp": "1970-01-01T01:00:00.0015+01:00"}, FIRST, (1, MAX)),
    ({"startingTimestamp": "7", "startId": "5-7"}, (7, 0), LAST),
]


@pytest.mark.parametrize(("options", "first", "last"), OPTIONS)
def test_options_are_bounds(
    options: dict[str, str], first: tuple[int, int], last: tuple[int, int]
) -> None:
    made = select(**options)
    assert (made.first, made.last) == (first, last)


@pytest.mark.parametrize("options", [{"startId": f"({MAX}-{MAX}"}, {"endId": "(0-0"}])
def test_bounds_beyond_all_ids_select_nothing(options: dict[str, str]) -> None:
    assert select(**options).is_empty


@pytest.mark.parametrize("text", ["", "(", "5-", "-5", "5-7-9", f"{MAX + 1}", "5 ", "((5"])
def test_text_that_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="'startId'"):
        select(startId=text)


def stream(name: bytes, count: int = 30) -> Stream:
    return Stream(name, {(n, 0): [b"a", b"b"] for n in range(1, count + 1)})


def plan(directory: Path, split_bytes: int = 1 << 20, at_least: int = 1) -> list[Any]:
    return planning.plan(Folder.of(str(directory)), 0, Selection(), split_bytes, at_least)


@pytest.mark.parametrize(
    ("split_bytes", "at_least"), [(1 << 20, 1), (1, 1), (1 << 20, 3), (500, 9)]
)
def test_a_plan_has_every_chunk_once(tmp_path: Path, split_bytes: int, at_least: int) -> None:
    write_snapshot(tmp_path, [stream(b"%d" % n) for n in range(20)], 60)
    partitions = plan(tmp_path, split_bytes, at_least)
    assert [chunk.number for one in partitions for chunk in one.chunks] == list(range(10))
    assert [one.number for one in partitions] == list(range(len(partitions)))
    assert len(partitions) >= min(at_least, 10)
    assert split_bytes != 1 or len(partitions) == 10


def test_keys_of_slots_that_move_are_left_out(tmp_path: Path) -> None:
    names = (b"arriving", b"left", b"freed", b"owned")
    ranges = [[[cluster_slot_of(name)] * 2] for name in names]
    slots = {
        "imports": [["1f", ranges[0], "s1", "ab", 7, -1]],
        "left": [["2e", ranges[1]]],
        "freeing": ranges[2],
    }
    streams = [Stream(name, {(1, 1): [b"f", b"v"]}) for name in names]
    write_base(tmp_path, streams, global_meta={"slots": slots})
    publish(tmp_path)
    assert [chunk.pieces.keys for part in plan(tmp_path) for chunk in part.chunks] == [[b"owned"]]


def test_a_snapshot_published_during_planning_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest was read, and then the base it named is gone: there is a newer one."""
    write_snapshot(tmp_path, [stream(b"old")])
    newest = planning._newest

    def publish_after(folder: Folder, manifest: Manifest) -> str:
        name = newest(folder, manifest)
        if name == "base-1.msnap":
            write_base(tmp_path, [stream(b"new")], 2)
            publish(tmp_path, 2)
        return name

    monkeypatch.setattr(planning, "_newest", publish_after)
    (partition,) = plan(tmp_path)
    assert partition.snapshot.file == "base-2.msnap"
    assert [chunk.pieces.keys for chunk in partition.chunks] == [[b"new"]]

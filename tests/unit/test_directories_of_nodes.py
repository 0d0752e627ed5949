"""The error about a directory of nodes, in place of that of a server, says what to name instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.errors import DataError, StartError
from millstream.pipeline import rdb_export
from millstream.pipeline.files import Folder
from millstream.server.cluster.node_settings import refuse_server
from millstream.server.cluster.slot_map import refuse_nodes
from millstream.server.moving import compared_sides
from millstream.server.repair.destination import without_data
from millstream.storage.files.disk import SystemDisk


def checked(folder: Path) -> None:
    raise without_data(SystemDisk(folder))


@pytest.mark.parametrize(
    "read",
    [
        lambda folder: Folder.of(str(folder)).manifest(),
        lambda folder: Folder.of(folder.as_uri()).manifest(),
        lambda folder: rdb_export._newest_base(folder),
        lambda folder: compared_sides.open_side(str(folder)),
        checked,
    ],
)
def test_a_node_has_to_be_named(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises((DataError, compared_sides.NotComparable)) as other:
        read(tmp_path)
    assert "nodes" not in str(other.value)
    (tmp_path / "cluster.json").touch()
    words = f"it is a directory of nodes; name one of them, such as .*{tmp_path.name}/0001"
    with pytest.raises((DataError, compared_sides.NotComparable), match=words):
        read(tmp_path)
    (tmp_path / "cluster-backup.json").touch()
    with pytest.raises((DataError, compared_sides.NotComparable), match="the backup of a cluster"):
        read(tmp_path)


def test_nodes_without_their_map_are_refused_with_what_to_do(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number:04}").mkdir()
        (tmp_path / f"{number:04}" / "manifest").touch()
    words = "has directories of nodes .0001., but no cluster.json, .*: restore that file"
    with pytest.raises(StartError, match=words):
        refuse_server(tmp_path, 2)


def test_nothing_is_started_in_the_backup_of_a_cluster(tmp_path: Path) -> None:
    refuse_server(tmp_path, 3)
    refuse_nodes(tmp_path)
    (tmp_path / "cluster-backup.json").touch()
    with pytest.raises(StartError, match="copy it with `millstream cluster restore"):
        refuse_server(tmp_path, 3)
    with pytest.raises(StartError, match="copy it with `millstream cluster restore"):
        refuse_nodes(tmp_path)

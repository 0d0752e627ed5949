"""A backup of a cluster: a folder with a backup of one node of each shard, and a description.

The description is written last, and the folder gets its name when everything is in it: what an
interrupted program leaves is no backup. The parts are of different moments, each of which is after
the beginning. Which shard owns a slot does not change meanwhile: a cluster in etcd has a lock
for that (`backup_sources`).
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import click

from millstream import __version__
from millstream.errors import DataError
from millstream.server.backup.backup_cli import (
    Failure,
    Outcome,
    SourceLost,
    destination_errors,
    write_copy,
)
from millstream.server.backup.sources import Copied
from millstream.server.cluster.cluster_view import by_number
from millstream.server.config.file_replacement import replace_file
from millstream.server.repair.backup_description import directory_id
from millstream.server.repair.destination import CLUSTER_BACKUP, USERS_NAME, Destination
from millstream.storage.files.disk import SystemDisk
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS

VERSION = 1
ATTEMPTS = 3  # to copy a shard whose primary changes
AGAIN_S = 0.5  # between two attempts to reach a primary
_ID = re.compile("[0-9a-f]{32,40}")
_NAME = re.compile("[a-z0-9]{1,32}")


class ShardState(NamedTuple):
    """A shard: its term, its slots, the number of its members, and how many in addition to the
    primary must have a write. `primary` is the ID of the node with its data."""

    name: str
    term: int
    primary: str
    ranges: tuple[tuple[int, int], ...]
    size: int
    durable: int


class ShardBackup(NamedTuple):
    """A shard in a backup; the ID of the data directory that has its data."""

    state: ShardState
    directory: str


class ClusterBackup(NamedTuple):
    """The description of a backup: the name of the cluster ("": one machine), the epoch of its map,
    and its shards."""

    name: str
    epoch: int
    shards: tuple[ShardBackup, ...]


class Source(Protocol):
    """A cluster of which a backup is made."""

    name: str
    patience_s: float  # until a shard whose primary cannot be reached has another one

    def held(self) -> AbstractContextManager[object]:
        """While this is open, no slot gets another owner."""

    @property
    def epoch(self) -> int: ...
    def shards(self) -> list[str]:
        """Their names."""

    def state(self, shard: str) -> ShardState:
        """As it is now. CliError if it has no primary that runs."""

    def copy(self, state: ShardState, disk: SystemDisk) -> tuple[Copied, dict[str, Any]]:
        """Copy the data of the primary."""

    def users(self) -> bytes | None:
        """The lines of an aclfile; None if there are none."""

    def check(self) -> None:
        """CliError if the lock has ended, or the map has changed."""


def back_up(source: Source, final: Path, level: str) -> list[dict[str, Any]]:
    """Write a backup; the facts about each shard. CliError if that is impossible, and then there
    is no backup. `level`: how much of each copy is checked."""
    with destination_errors(final):
        destination = Destination(final)
        with destination.discarded_on_error(), source.held():
            found = [_copy(source, shard, destination.folder, level) for shard in source.shards()]
            source.check()
            users = source.users()
            if users is not None:
                replace_file(destination.folder / USERS_NAME, users, mode=0o600)
            shards = tuple(shard for shard, _ in found)
            _describe(destination.folder, ClusterBackup(source.name, source.epoch, shards))
            destination.publish()
    return [facts for _, facts in found]


def _copy(
    source: Source, name: str, folder: Path, level: str
) -> tuple[ShardBackup, dict[str, Any]]:
    """Copy a shard. A primary that was deposed meanwhile may lack what another one has confirmed:
    then that one is copied."""
    place = folder / name
    attempt = _Attempts(source, name)
    for _ in range(ATTEMPTS):
        state, facts = attempt.copied(place, level)
        now = source.state(name)
        if (now.term, now.primary) == (state.term, state.primary):
            directory = directory_id(SystemDisk(place))
            assert directory is not None
            return ShardBackup(state, directory), {"shard": name, **facts}
        shutil.rmtree(place)
    raise Failure(
        Outcome.BROKEN,
        f"shard {name} has changed its primary or its members during each of {ATTEMPTS} attempts: "
        "try again when `millstream cluster status` shows that it is stable",
    )


class _Attempts:
    """Copies a shard, also if its primary has stopped, once another one is elected."""

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._name = name
        self._end_s = 0.0  # of the wait; 0: every attempt has reached the primary

    def copied(self, place: Path, level: str) -> tuple[ShardState, dict[str, Any]]:
        """The state of the shard before the copy, and the facts about the copy. SourceLost if no
        primary can be reached in time."""
        while True:
            state = self._source.state(self._name)
            try:
                copy = partial(self._source.copy, state)
                return state, write_copy(lambda: Destination(place), copy, level)
            except SourceLost as problem:
                self._wait(problem)

    def _wait(self, problem: SourceLost) -> None:
        """Wait a moment before the next attempt. Raises the problem if the time is over."""
        now_s, patience_s = time.monotonic(), self._source.patience_s
        if not self._end_s and patience_s:
            self._end_s = now_s + patience_s
            click.echo(
                f"millstream: {problem.message}: waiting up to {patience_s:g} seconds for a "
                f"primary of shard {self._name} that can be reached",
                err=True,
            )
        if now_s >= self._end_s:
            raise problem
        time.sleep(AGAIN_S)


# The description


def _describe(folder: Path, backup: ClusterBackup) -> None:
    now_ms = time.time_ns() // 1_000_000
    document = {
        "version": VERSION,
        "program": __version__,
        "time_ms": now_ms,
        "cluster": backup.name,
        "epoch": backup.epoch,
        "shards": {
            shard.state.name: {
                "term": shard.state.term,
                "ranges": shard.state.ranges,
                "size": shard.state.size,
                "durable": shard.state.durable,
                "directory_id": shard.directory,
            }
            for shard in backup.shards
        },
    }
    text = json.dumps(document, indent=1).encode() + b"\n"
    replace_file(folder / CLUSTER_BACKUP, text, mode=0o600)


def read_backup(folder: Path) -> ClusterBackup:
    """The description of a backup. DataError if there is none, or it is damaged."""
    path = folder / CLUSTER_BACKUP
    try:
        document = json.loads(path.read_bytes())
        version = document["version"]
        if version != VERSION:
            raise DataError(f"{path} has version {version}, which this program does not know")
        return _backup_of(document)
    except FileNotFoundError:
        raise DataError(
            f"{folder} is not a backup of a cluster: it has no {CLUSTER_BACKUP}. The backup of a "
            "server is restored with `millstream restore`"
        ) from None
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise DataError(
            f"{path} is damaged ({type(problem).__name__}: {problem}): copy the backup again"
        ) from None


def _backup_of(document: dict[str, Any]) -> ClusterBackup:
    shards = tuple(
        ShardBackup(
            ShardState(
                _matching(_NAME, name),
                _number(row["term"]),
                "",
                tuple((_number(first), _number(last)) for first, last in row["ranges"]),
                _number(row["size"]),
                _number(row["durable"]),
            ),
            _matching(_ID, row["directory_id"]),
        )
        for name, row in document["shards"].items()
    )
    if not shards:
        raise ValueError("it has no shards")
    _check_ranges(sorted(pair for shard in shards for pair in shard.state.ranges))
    if not isinstance(document["cluster"], str):
        raise ValueError("the name of the cluster is not text")
    return ClusterBackup(document["cluster"], _number(document["epoch"]), shards)


def _check_ranges(ranges: list[tuple[int, int]]) -> None:
    after = 0
    for first, last in ranges:
        if not after <= first <= last < CLUSTER_SLOTS:
            raise ValueError(f"the slots {first} to {last} are wrong, or are those of two shards")
        after = last + 1


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.40} is not a number")
    return value


def _matching(form: re.Pattern[str], text: object) -> str:
    if not isinstance(text, str) or not form.fullmatch(text):
        raise ValueError(f"{text!r:.60} is wrong")
    return text


def numbered(shards: tuple[ShardBackup, ...]) -> Iterator[tuple[int, ShardBackup]]:
    """The shards with their numbers from 1, s10 after s9."""
    ordered = sorted(shards, key=lambda one: by_number(one.state.name))
    return enumerate(ordered, start=1)

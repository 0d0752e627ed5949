"""PostgreSQL clusters for the tests of change data capture."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from bench.postgres import PREFIX, Postgres
from tests.support.pipelines import Pipeline, ended
from tests.support.server import Server
from tests.support.waiting import wait_until

NUMBERS = itertools.count()
# Autovacuum would look at a database after the other, which takes more time the more tests have
# made one. A small log is recycled instead of growing in memory.
QUIET = {"autovacuum": "off", "max_wal_size": "128MB"}
MEMORY = Path("/dev/shm")
LEFT_S = 3600.0
CLUSTERS_BYTES = 4 << 30  # of all workers, with room to spare


def memory() -> Path | None:
    """The folder in memory for clusters, if it is large enough. PostgreSQL makes 300 files for a
    database, and a file system on a disk needs ten times the CPU time for them."""
    for folder in MEMORY.glob(f"{PREFIX}*"):
        if is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > CLUSTERS_BYTES
    return MEMORY if has_room else None


def is_left(folder: Path) -> bool:
    """True if a test run that was killed has left this folder: its cluster has not run since long
    ago."""
    with contextlib.suppress(OSError, ValueError):
        (process_id,) = {int(file.read_text().split()[0]) for file in folder.glob("*/*.pid")} or {0}
        is_running = process_id > 0 and Path(f"/proc/{process_id}").exists()
        return not is_running and time.time() - folder.stat().st_mtime > LEFT_S
    return False


@pytest.fixture(scope="session")
def source_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    directory = tmp_path_factory.mktemp("source") / "cluster"
    cluster = Postgres(directory, {"wal_level": "logical", **QUIET}, memory())
    yield cluster.start()
    cluster.kill()


@pytest.fixture(scope="session")
def destination_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A cluster that cannot be a source: its wal_level is replica."""
    directory = tmp_path_factory.mktemp("destination") / "cluster"
    cluster = Postgres(directory, {"wal_level": "replica", **QUIET}, memory())
    yield cluster.start()
    cluster.kill()


@pytest.fixture
def new_database(source_cluster: Postgres) -> Iterator[Callable[[], str]]:
    """Makes empty databases in the source cluster; returns their URLs. Their slots are dropped at
    the end of the test."""
    names: list[str] = []

    def make() -> str:
        name = f"test{next(NUMBERS)}"
        names.append(name)
        return source_cluster.create_database(name)

    yield make
    with source_cluster.connect("postgres") as connection:
        for name in names:
            drop(connection, name)


def drop(connection: psycopg.Connection[object], name: str) -> None:
    """Drop a database with its slots. A reader that was killed may connect once more."""
    wait_until(lambda: is_dropped(connection, name), bool, f"the end of the database {name}")


def is_dropped(connection: psycopg.Connection[object], name: str) -> bool:
    """End the readers of a database, and drop it if no other one has come."""
    connection.execute(
        "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity"
        " WHERE datname = %s AND backend_type = 'walsender'",
        [name],
    )
    try:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = %s",
            [name],
        )
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    except psycopg.errors.ObjectInUse:
        return False
    return True


@pytest.fixture
def source(new_database: Callable[[], str]) -> Iterator[psycopg.Connection[object]]:
    """A connection to an empty database in the source cluster."""
    with psycopg.connect(new_database(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def pipeline(tmp_path: Path, durable_server: Server) -> Iterator[Pipeline]:
    """A pipeline whose destination cannot be reached: reading does not need it."""
    with ended(Pipeline(tmp_path, durable_server, "postgresql://127.0.0.1:1/none")) as one:
        yield one

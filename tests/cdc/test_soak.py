"""Writers at two sources while everything is killed at random; in the end, all contents agree.

`MILLSTREAM_CDC_SOAK_S` is the time for which the writers work; 6 seconds by default.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from bench.postgres import Postgres
from tests.support.pipelines import Pipeline, ended
from tests.support.server import Server
from tests.support.waiting import wait_until

SOAK_S = float(os.environ.get("MILLSTREAM_CDC_SOAK_S", "6"))
DEADLINE_S = 120.0 + 2 * SOAK_S
SIDS = ("eu", "us")
TABLES = """keyed = {}
keyless = {}
versions = { type = "history" }
added = { type = "append" }
"""
LATE = TABLES + "late = {}\n"
COLUMNS = "id int, a text, n numeric"

pytestmark = pytest.mark.timeout(600 + 4 * SOAK_S)


class Killable:
    """Programs and servers that are killed and started again."""

    def __init__(self, pipeline: Pipeline, source: Postgres, destination: Postgres) -> None:
        self.pipeline = pipeline
        self.source = source
        self.destination = destination
        self.kills: dict[str, int] = {}
        self._apply: subprocess.Popen[bytes] | None = None
        self._log = pipeline.log_path.with_name("apply.log")

    def start(self) -> None:
        self.pipeline.start()
        self.start_apply()

    def start_apply(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "tests.cdc.plain_apply", self.pipeline.file]
            self._apply = subprocess.Popen(command, stdout=log, stderr=log)

    def stop_apply(self) -> None:
        if self._apply is not None:
            self._apply.kill()
            self._apply.wait()

    def kill_one(self, chance: random.Random) -> None:
        names = ["run", "reader", "millstream", "destination", "source", "apply", "apply"]
        name = chance.choice(names)
        self.kills[name] = self.kills.get(name, 0) + 1
        if name == "run":
            self.pipeline.stop()
            self.pipeline.start()
        elif name == "reader":
            report = self.pipeline.alive(chance.choice(SIDS))
            with contextlib.suppress(ProcessLookupError):
                os.kill(report.get("pid", 2**22 + 1), signal.SIGKILL)
        elif name == "millstream":
            self.pipeline.server.kill()
            self.pipeline.server.start()
        elif name == "apply":
            self.stop_apply()
            self.start_apply()
        else:
            cluster = self.source if name == "source" else self.destination
            cluster.kill()
            cluster.start()


def write(url: str, seed: int, stop: threading.Event) -> None:
    """Random transactions, until the end; a killed source is only waited for."""
    chance = random.Random(seed)
    while not stop.is_set():
        with contextlib.suppress(psycopg.Error), psycopg.connect(url) as connection:
            while not stop.is_set():
                transaction(connection, chance)
                connection.commit()
                time.sleep(0.005)
        stop.wait(0.1)


def transaction(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    number = chance.randrange(60)
    for table in ("keyed", "versions"):
        put = (
            f"INSERT INTO {table} VALUES (%s, %s, 1)"
            f" ON CONFLICT (id) DO UPDATE SET n = {table}.n + 1"
        )
        connection.execute(put.encode(), [number, str(number)])
        if chance.random() < 0.3:
            connection.execute(f"DELETE FROM {table} WHERE id = %s".encode(), [number])
        if chance.random() < 0.1:
            statement = (
                f"UPDATE {table} SET id = %s WHERE id = %s"
                f" AND NOT EXISTS (SELECT FROM {table} WHERE id = %s)"
            )
            other = 60 + chance.randrange(60)
            connection.execute(statement.encode(), [other, number, other])
    connection.execute("INSERT INTO keyless VALUES (%s, 'x', 1), (%s, 'x', 1)", [number, number])
    one = "(SELECT ctid FROM keyless WHERE id = %s LIMIT 1)"
    connection.execute(f"UPDATE keyless SET n = n + 1 WHERE ctid = {one}".encode(), [number])
    connection.execute(f"DELETE FROM keyless WHERE ctid = {one}".encode(), [number])
    connection.execute("INSERT INTO added (a, n) VALUES (%s, 1)", [str(number)])
    if connection.execute("SELECT to_regclass('late')").fetchone() != (None,):
        connection.execute("INSERT INTO late VALUES (%s, 'late', 1)", [number])


@pytest.fixture
def killable(
    tmp_path: Path, new_server: Callable[..., Server]
) -> Iterator[tuple[Killable, dict[str, str]]]:
    """Two sources in a cluster, a destination in another one, and a server: all to be killed."""
    source = Postgres(tmp_path / "source" / "cluster", {"wal_level": "logical", "fsync": "on"})
    destination = Postgres(tmp_path / "target" / "cluster", {"fsync": "on"})
    server = new_server("data", {"appendfsync": "always"})
    clusters = [source, destination]
    try:
        for one in clusters:
            one.start()
        server.start()
        urls = {sid: source.create_database(sid) for sid in SIDS}
        with ended(Pipeline(tmp_path, server, destination.create_database("dw"))) as pipeline:
            made = Killable(pipeline, source, destination)
            try:
                yield made, urls
            finally:
                made.stop_apply()
    finally:
        for one in clusters:
            one.kill()


def prepare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for name in ("keyed", "versions"):
            connection.execute(f"CREATE TABLE {name} ({COLUMNS}, PRIMARY KEY (id))".encode())
        connection.execute(f"CREATE TABLE keyless ({COLUMNS})".encode())
        connection.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
        connection.execute("CREATE TABLE added (id serial PRIMARY KEY, a text, n numeric)")
        connection.execute(
            "INSERT INTO keyless SELECT n, 'first', 0 FROM generate_series(1, 500) n"
        )


def add_table(killable: Killable, urls: dict[str, str]) -> None:
    """A table more, for which both programs are started again."""
    for url in urls.values():
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                f"CREATE TABLE late ({COLUMNS}); ALTER TABLE late REPLICA IDENTITY FULL".encode()
            )
    killable.pipeline.stop()
    killable.stop_apply()
    killable.pipeline.configure(urls, LATE, SECTIONS)
    killable.pipeline.call("setup", "--create-targets")
    killable.start()


SECTIONS = {
    "apply": "commit_delay = 0.1\nmax_rows = 500\nretry_max = 1",
    "millstream": "timeout = 5",
}


def contents(url: str, query: str) -> list[tuple[Any, ...]]:
    try:
        with psycopg.connect(url) as connection:
            return sorted(connection.execute(query.encode()).fetchall(), key=repr)
    except psycopg.OperationalError:
        return []


def test_all_contents_agree_after_kills_of_all_processes(
    killable: tuple[Killable, dict[str, str]],
) -> None:
    made, urls = killable
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for url in urls.values():
        prepare(url)
    made.pipeline.configure(urls, TABLES, SECTIONS)
    made.pipeline.call("setup", "--create-targets")
    made.start()
    stop = threading.Event()
    writers = [
        threading.Thread(target=write, args=(url, chance.randrange(2**32), stop))
        for url in urls.values()
        for _ in range(2)
    ]
    for writer in writers:
        writer.start()
    began = time.monotonic()
    is_added = False
    while time.monotonic() < began + SOAK_S:
        stop.wait(chance.uniform(0.2, 1.0))
        if not is_added and time.monotonic() > began + SOAK_S / 2:
            add_table(made, urls)
            is_added = True
        else:
            made.kill_one(chance)
    stop.set()
    for writer in writers:
        writer.join()
    if not is_added:
        add_table(made, urls)
    print(f"seed {seed}, kills {made.kills}")
    for sid, url in urls.items():
        compare(made, sid, url)
    check_versions(made)


def compare(made: Killable, sid: str, url: str) -> None:
    """Wait until the rows of a source are those of its part of the destination."""
    target = made.pipeline.target
    for table in ("keyed", "keyless", "added", "late", "versions"):
        open_ = " AND kvsz_end = '9999-01-01'" if table == "versions" else ""
        wanted = contents(url, f"SELECT id, a, n FROM {table}")
        query = f"SELECT id, a, n FROM {table} WHERE sid = '{sid}'{open_}"
        wait_until(
            lambda query=query: contents(target, query),  # type: ignore[misc]
            lambda found, wanted=wanted: found == wanted,  # type: ignore[misc]
            f"the rows of {sid} {table} ({made.pipeline.log_path})",
            DEADLINE_S,
        )


def check_versions(made: Killable) -> None:
    """A version of a key begins when the one before it ends, or later if that one was deleted."""
    faults = contents(
        made.pipeline.target,
        "SELECT * FROM (SELECT *, lead(kvsz_start) OVER (PARTITION BY sid, id ORDER BY kvsz_start)"
        " AS next FROM versions) v WHERE kvsz_end <= kvsz_start OR next < kvsz_end"
        " OR (NOT kvsz_deleted AND next <> kvsz_end)"
        " OR (NOT kvsz_deleted AND next IS NULL AND kvsz_end <> '9999-01-01')",
    )
    assert faults == []

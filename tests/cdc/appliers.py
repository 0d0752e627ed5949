"""Fixtures for tests of `apply`: a destination, a feed, and a driver with its workers in this
process."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from tests.cdc.feeding import Feed, config_text, parsed
from tests.support.client import RawClient

from millstream.cdc.applier.apply_jobs import (
    ApplyJob,
    WorkerAnswer,
    answer_from_json,
    answer_to_json,
    jobs_from_json,
    jobs_to_json,
)
from millstream.cdc.applier.apply_status import ApplyStatus
from millstream.cdc.applier.apply_worker import ApplyWorker
from millstream.cdc.applier.driver import Driver
from millstream.cdc.config_file import load
from millstream.cdc.destination.offsets import AppliedOffset, OffsetTable, create_sql

KEYED = "sid text, id int, a text, b numeric(10,2), PRIMARY KEY (sid, id)"
KEYLESS = "sid text, id int, a text, b numeric(10,2)"
HISTORY = (
    "sid text, id int, a text, b numeric(10,2), kvsz_start timestamptz, kvsz_end timestamptz,"
    " kvsz_deleted boolean, PRIMARY KEY (sid, id, kvsz_start)"
)


class Applier:
    """A destination and an `apply` without Spark: the workers run one after the other."""

    def __init__(
        self,
        client: RawClient,
        url: str,
        tables: str,
        sids: Sequence[str] = ("eu",),
        extra: str = "",
    ) -> None:
        self.url = url
        self.text = config_text(client.port, url, tables, sids, extra)
        self.config = parsed(self.text)
        self.connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        self.connection.execute(create_sql("public"))
        self.feeds = {sid: Feed(client, self.config, sid) for sid in sids}
        self.feed = self.feeds[sids[0]]
        self.status = ApplyStatus()
        self.worker = ApplyWorker(self.config)
        self.driver = Driver(self.config, self.run, self.status)
        self.batches: list[list[list[ApplyJob]]] = []

    def close(self) -> None:
        self.driver.close()
        self.worker.close()
        self.connection.close()

    def run(self, parts: Sequence[Sequence[ApplyJob]]) -> list[WorkerAnswer]:
        """The parts, in order; jobs and answers are passed as texts, as by Spark."""
        self.batches.append([list(part) for part in parts])
        return [
            answer_from_json(answer_to_json(self.worker.run(jobs_from_json(jobs_to_json(part)))))
            for part in parts
        ]

    def as_user(self, name: str) -> None:
        """Work as another role from now on."""
        self.config = parsed(self.text.replace("//postgres@", f"//{name}@"))
        self.worker = ApplyWorker(self.config)
        self.restart()

    def restart(self) -> None:
        """Forget everything that is only in memory."""
        self.driver.close()
        self.status = ApplyStatus()
        self.driver = Driver(self.config, self.run, self.status)

    def apply(self) -> int:
        """`apply --once`."""
        return self.driver.apply(threading.Event(), once=True)

    def execute(self, sql: str) -> None:
        self.connection.execute(sql.encode())

    def rows(self, sql: str = "SELECT sid, id, a, b FROM t ORDER BY sid, id") -> list[Any]:
        return [
            tuple(None if value is None else str(value) for value in row)
            for row in self.connection.execute(sql.encode()).fetchall()
        ]

    def position(self, table: str = "t", sid: str = "eu") -> AppliedOffset:
        return OffsetTable(self.connection, "public").read()["shop", sid, f"public.{table}"]


class Applying:
    """An `apply` without Spark in a thread of this process, for the configuration of a file."""

    def __init__(self, file: Path) -> None:
        self.config = load(file)
        self.connection: psycopg.Connection[Any] = psycopg.connect(
            self.config.destination.url, autocommit=True
        )
        self.connection.execute(create_sql("public"))
        self.status = ApplyStatus()
        self._worker = ApplyWorker(self.config)
        self._driver = Driver(self.config, self._run, self.status)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._driver.apply, args=(self._stop,))

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Wait for the end of the batch, and close all connections."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(60)
        self._driver.close()
        self._worker.close()
        self.connection.close()

    def _run(self, parts: Sequence[Sequence[ApplyJob]]) -> list[WorkerAnswer]:
        return [self._worker.run(part) for part in parts]

    @property
    def problem(self) -> str | None:
        return self.status.problem

    def execute(self, sql: str) -> None:
        self.connection.execute(sql.encode())

    def values(self, sql: str) -> list[Any]:
        return self.connection.execute(sql.encode()).fetchall()

    def count(self, table: str) -> int:
        ((found,),) = self.values(f"SELECT count(*) FROM {table}")
        return int(found)

    def ids(self, table: str) -> list[int]:
        return [row[0] for row in self.values(f"SELECT id FROM {table} ORDER BY id")]

    def position(self, table: str, sid: str = "eu") -> AppliedOffset:
        key = ("shop", sid, f"public.{table}")
        return OffsetTable(self.connection, "public").read().get(key, AppliedOffset(key, ""))

    def warnings(self, table: str, sid: str = "eu") -> list[str]:
        """The status of a table."""
        return list(
            json.loads(self.status.to_json())["warnings"].get(f"shop:{sid} public.{table}", [])
        )

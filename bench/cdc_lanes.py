"""The lanes of `bench.cdc`: `millstream cdc`, and PostgreSQL's own subscription."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import redis

from bench.cdc_processes import Clusters, Program, wait_until
from bench.figures import BenchError
from bench.postgres import programs
from bench.server import free_port
from millstream.cdc.destination.offsets import create_sql

TIMEOUT_S = 600.0
PROBE_S = 0.02
NUMBERS = itertools.count(1)


class Lane:
    """A way from a database of one cluster to a database of the other one."""

    name = ""

    def __init__(self, clusters: Clusters, directory: Path) -> None:
        self._clusters = clusters
        self._directory = directory
        self._database = f"bench{next(NUMBERS)}"
        for cluster in (clusters.source, clusters.destination):
            with cluster.connect("postgres") as connection:
                connection.execute(f'CREATE DATABASE "{self._database}"'.encode())
        self.source: psycopg.Connection[Any] = clusters.source.connect(self._database)
        self.destination: psycopg.Connection[Any] = clusters.destination.connect(self._database)

    def prepare(self, tables: Sequence[str]) -> None:
        """Everything that is not measured."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to work, or continue."""
        raise NotImplementedError

    def pause(self) -> None:
        """Stop working; changes are kept for later."""
        raise NotImplementedError

    def wait_steady(self) -> None:
        """Wait until everything of now is at the destination."""
        raise NotImplementedError

    def wait_confirmed(self) -> None:
        """Wait until the source need not keep anything of now for this lane."""
        (lsn,) = self.source.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
        lagging = f"confirmed_flush_lsn < '{lsn}'::pg_lsn".encode()
        query = b"SELECT count(*) > 0 AND count(*) FILTER (WHERE " + lagging + b") = 0"
        query += b" FROM pg_replication_slots WHERE database = current_database()"

        def look() -> bool:
            row = self.source.execute(query).fetchone()
            return row is not None and bool(row[0])

        wait_until(look, "the confirmation of all changes", TIMEOUT_S)

    def cpu_s(self) -> dict[str, float]:
        """The CPU time so far of each of the parts."""
        return self._clusters.cpu_s()

    def close(self) -> None:
        self.source.close()
        self.destination.close()

    # ------------------------------------------------------------ databases

    def execute(self, where: str, sql: str) -> None:
        chosen = {"source": [self.source], "destination": [self.destination]}
        for connection in chosen.get(where, [self.source, self.destination]):
            for statement in sql.split(";"):
                connection.execute(statement.encode())

    def wait(self, query: str, wanted: int) -> None:
        """Wait until a query of the destination has this result."""

        def look() -> bool:
            row = self.destination.execute(query.encode()).fetchone()
            return row is not None and row[0] >= wanted

        wait_until(look, f"{wanted} as the result of {query}", TIMEOUT_S)

    def check_same(self, tables: Sequence[str]) -> None:
        """BenchError if a table differs."""
        for table in tables:
            query = f"SELECT count(*), sum(hashtext(t::text)::bigint) FROM {table} AS t".encode()
            found = [one.execute(query).fetchone() for one in (self.source, self.destination)]
            if found[0] != found[1]:
                raise BenchError(f"{self.name}: {table} differs: {found}")

    def _pgbench(self, at: str, words: Sequence[str]) -> list[str]:
        cluster = self._clusters.source if at == "source" else self._clusters.destination
        where = ["-h", "127.0.0.1", "-p", str(cluster.port), "-U", "postgres"]
        return [str(programs() / "pgbench"), *where, *words, self._database]

    def pgbench(self, *words: str, at: str = "source") -> None:
        done = subprocess.run(self._pgbench(at, words), capture_output=True, text=True)
        if done.returncode:
            raise BenchError(f"pgbench: {done.stderr[-500:]}")

    @contextlib.contextmanager
    def pgbench_running(self, *words: str) -> Iterator[None]:
        process = subprocess.Popen(
            self._pgbench("source", words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()

    def probe(self, seconds: float) -> list[float]:
        """Insert a row every 20 ms; the ages of the rows when the destination has them."""
        ended = threading.Event()

        def send() -> None:
            with self._clusters.source.connect(self._database) as connection:
                for number in itertools.count():
                    if ended.wait(PROBE_S):
                        return
                    connection.execute("INSERT INTO probe VALUES (%s, %s)", [number, time.time()])

        sender = threading.Thread(target=send)
        sender.start()
        ages: list[float] = []
        seen, end = -1, time.monotonic() + seconds
        while time.monotonic() < end:
            rows = self.destination.execute(
                "SELECT id, sent FROM probe WHERE id > %s ORDER BY id", [seen]
            ).fetchall()
            now = time.time()
            ages += [now - sent for _, sent in rows]
            seen = rows[-1][0] if rows else seen
            time.sleep(PROBE_S)
        ended.set()
        sender.join()
        if not ages:
            raise BenchError("no change has arrived")
        return ages


class Cdc(Lane):
    """millstream, `run` and `apply`."""

    name = "millstream cdc"

    def __init__(self, clusters: Clusters, directory: Path) -> None:
        super().__init__(clusters, directory)
        self._file = directory / "cdc.toml"
        data = directory / "data"
        data.mkdir()
        self._port = free_port()
        server = [Path(sys.prefix) / "bin" / "millstream-server"]
        words = [*server, "--port", self._port, "--dir", data]
        self._server = Program(words, directory / "server.log")
        self._run: Program | None = None
        self._apply: Program | None = None
        self._client = redis.Redis(port=self._port)
        wait_until(self._answers, "the server's start", 30)

    def _answers(self) -> bool:
        try:
            return bool(self._client.ping())
        except redis.ConnectionError:
            return False

    def prepare(self, tables: Sequence[str]) -> None:
        listed = "\n".join(f"{name} = {{}}" for name in tables)
        self._file.write_text(
            f'[millstream]\nserver = "redis://127.0.0.1:{self._port}"\n'
            f'[destination]\nurl = "{self._clusters.destination.url(self._database)}"\n'
            'sid_column = ""\n[apply]\nmaster = "local[2]"\n'
            f'[[database]]\nname = "{self._database}"\n'
            f'source = [{{ sid = "one", url = "{self._clusters.source.url(self._database)}" }}]\n'
            f"[database.tables]\n{listed}\n"
        )
        self.destination.execute(create_sql("public"))
        self._apply = self._program("apply")
        wait_until(lambda: self._client.get("cdc:apply:alive"), "the start of apply", 300)

    def _program(self, *words: str) -> Program:
        command = [sys.executable, "-m", "millstream", "cdc", "--config", self._file, *words]
        return Program(command, self._directory / f"{words[0]}.log")

    def start(self) -> None:
        self._run = self._program("run")

    def pause(self) -> None:
        if self._run is not None:
            self._run.stop()
        self._run = None

    def wait_steady(self) -> None:
        """All positions are those of a copy or of the last change."""
        steady = "count(*) > 0 AND count(*) FILTER (WHERE state <> 'streaming') = 0"
        self.wait(f"SELECT ({steady})::int FROM millstream_position", 1)
        tables = f"cdc:{self._database}:one:public.*"

        def look() -> bool:
            streams = [key for key in self._client.scan_iter(tables) if key.count(b":") == 3]
            return bool(streams) and not any(self._client.xlen(key) for key in streams)

        wait_until(look, "the end of the streams", TIMEOUT_S)

    def cpu_s(self) -> dict[str, float]:
        parts = {"millstream": self._server, "run": self._run, "apply": self._apply}
        own = {name: 0.0 if one is None else one.cpu_s() for name, one in parts.items()}
        return super().cpu_s() | own

    def close(self) -> None:
        for one in (self._run, self._apply, self._server):
            if one is not None:
                one.stop()
        super().close()


class Subscription(Lane):
    """PostgreSQL's own logical replication."""

    name = "subscription"

    def __init__(self, clusters: Clusters, directory: Path) -> None:
        super().__init__(clusters, directory)
        self._is_made = False

    def prepare(self, tables: Sequence[str]) -> None:
        self.execute("source", f"CREATE PUBLICATION bench FOR TABLE {', '.join(tables)}")

    def start(self) -> None:
        if self._is_made:
            self.execute("destination", "ALTER SUBSCRIPTION bench ENABLE")
            return
        cluster = self._clusters.source
        url = f"host=127.0.0.1 port={cluster.port} user=postgres dbname={self._database}"
        slot = f"slot_name = '{self._database}'"
        self.execute(
            "destination",
            f"CREATE SUBSCRIPTION bench CONNECTION '{url}' PUBLICATION bench WITH ({slot})",
        )
        self._is_made = True

    def pause(self) -> None:
        self.execute("destination", "ALTER SUBSCRIPTION bench DISABLE")
        query = "SELECT count(*) = 0 FROM pg_replication_slots WHERE active"
        wait_until(lambda: self._is_true(query), "the end of the subscription's worker", 60)

    def _is_true(self, query: str) -> bool:
        row = self.source.execute(query.encode()).fetchone()
        return row is not None and bool(row[0])

    def wait_steady(self) -> None:
        def look() -> bool:
            query = "SELECT count(*) FILTER (WHERE srsubstate <> 'r') = 0 FROM pg_subscription_rel"
            row = self.destination.execute(query.encode()).fetchone()
            return row is not None and bool(row[0])

        wait_until(look, "the copies", TIMEOUT_S)

    def close(self) -> None:
        if self._is_made:
            self.execute("destination", "DROP SUBSCRIPTION bench")
        super().close()

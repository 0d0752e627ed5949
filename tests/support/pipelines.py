"""`millstream cdc` as a user runs it: a file, the programs, and their keys in millstream."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import redis
from click.testing import CliRunner, Result

from millstream.cdc.cdc_cli import cdc

from . import forking
from .server import ENVIRONMENT, Server
from .waiting import wait_until

DEADLINE_S = 30.0
PROGRAM = [sys.executable, "-m", "millstream", "cdc"]

Fields = dict[str, str]


class Pipeline:
    """A configuration with its processes. Use `stop` at the end."""

    def __init__(self, directory: Path, server: Server, target: str) -> None:
        self.file = directory / "cdc.toml"
        self.log_path = directory / "run.log"
        self.server = server
        self.target = target
        self._running: forking.Process | None = None
        self.environment: dict[str, str] = {}
        self.runs_program = False  # `run` and its sources are programs that were not forked

    def configure(
        self,
        sources: Mapping[str, str],
        tables: str,
        sections: Mapping[str, str] | None = None,
        database: str = "shop",
        port: int = 0,
    ) -> Pipeline:
        """Write the file: sid -> URL, the lines of [database.tables], lines of other sections. With
        `port`, the server is reached through it."""
        lines = {"millstream": "", "destination": "", "read": "", "apply": "", **(sections or {})}
        listed = ", ".join(f'{{ sid = "{sid}", url = "{url}" }}' for sid, url in sources.items())
        self.file.write_text(
            f'[millstream]\nserver = "redis://127.0.0.1:{port or self.server.port}"\n'
            f"{lines['millstream']}\n"
            f'[destination]\nurl = "{self.target}"\n{lines["destination"]}\n'
            f"[read]\n{lines['read']}\n[apply]\n{lines['apply']}\n"
            f'[[database]]\nname = "{database}"\nsource = [{listed}]\n{lines.get("database", "")}\n'
            f"[database.tables]\n{tables}\n"
        )
        return self

    # ------------------------------------------------------------ programs

    def call(self, *words: str, code: int | None = 0) -> Result:
        """Run a command to its end in this process, which has imported its libraries; the exit code
        must be `code`, if it is given."""
        done = CliRunner().invoke(cdc, ["--config", str(self.file), *words], env=self.environment)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert code is None or done.exit_code == code, (done.exit_code, done.stdout, done.stderr)
        return done

    def call_program(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """The same in a separate process, with all output of libraries."""
        done = subprocess.run(
            [*PROGRAM, "--config", self.file, *words],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S * 2,
            env=os.environ | self.environment,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def start(self, *sources: str) -> Pipeline:
        """Start `run`, without waiting for it."""
        words = ["cdc", "--config", str(self.file), "run", *sources]
        environment = os.environ | self.environment
        with self.log_path.open("ab") as log:
            forked = None
            if not self.runs_program:
                forked = forking.start(
                    words, log, Path.cwd(), environment, ENVIRONMENT, forking.CDC
                )
            self._running = forked or subprocess.Popen(
                [sys.executable, "-m", "millstream", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        return self

    @property
    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send `run` a signal; its exit code."""
        assert self._running is not None
        self._running.send_signal(number)
        return self._running.wait(DEADLINE_S)

    def exit_code(self) -> int:
        """Wait until `run` ends."""
        assert self._running is not None
        return self._running.wait(DEADLINE_S)

    def stop(self) -> None:
        """End what still runs."""
        if self._running is not None and self._running.poll() is None:
            self._running.kill()
            self._running.wait()

    # ------------------------------------------------------------ contents of millstream

    @functools.cached_property
    def client(self) -> Any:
        """A connection to the server, with texts as replies. Waits use it a hundred times a second,
        and making one takes forty times as long as a request."""
        return redis.Redis(port=self.server.port, decode_responses=True)

    def alive(self, sid: str = "eu", database: str = "shop") -> dict[str, Any]:
        """The report of a source's process; empty if there is none."""
        text = self.client.get(f"cdc:{database}:{sid}:alive")
        return json.loads(text) if text else {}

    def wait_reader(self, state: str = "reading", sid: str = "eu", problem: str = "") -> Any:
        """Wait until the reader is in this state with this problem; its report."""

        def good(report: dict[str, Any]) -> bool:
            return report.get("reader") == state and problem in (report.get("problem") or "")

        return wait_until(
            lambda: self.alive(sid),
            good,
            f"the reader's state {state} ({self.log_path})",
            DEADLINE_S,
        )

    def state(self, table: str = "", sid: str = "eu") -> dict[str, Any]:
        """The state of a source, or of one of its tables; empty if there is none."""
        key = f"cdc:shop:{sid}:{table}:state" if table else f"cdc:shop:{sid}:state"
        text = self.client.get(key)
        return json.loads(text) if text else {}

    def wait_copied(self, *tables: str, sid: str = "eu", after: str = "") -> None:
        """Wait until the copies of these tables are in millstream, and not the one with the LSN
        `after`."""
        for table in tables:
            wait_until(
                lambda table=table: self.state(table, sid),  # type: ignore[misc]
                lambda state: state.get("phase") == "copied" and state["copy_lsn"] != after,
                f"the copy of {table} ({self.log_path})",
                DEADLINE_S,
            )

    def entries(self, name: str, sid: str = "eu") -> list[tuple[str, Fields]]:
        """All entries of a stream: `public.orders`, `public.orders:copy`, or "" for the cuts."""
        key = f"cdc:shop:{sid}" + (f":{name}" if name else "")
        return [(name, dict(fields)) for name, fields in self.client.xrange(key)]

    def changes(self, table: str, sid: str = "eu") -> list[Fields]:
        """The entries of a table's changes, without `start` and without times."""
        found = [fields for _, fields in self.entries(table, sid)]
        return [
            {name: value for name, value in fields.items() if name != "@at"}
            for fields in found
            if fields["@op"] != "start"
        ]

    def wait_changes(self, table: str, count: int, sid: str = "eu") -> list[Fields]:
        """Wait until a table has this number of changes."""
        return wait_until(
            lambda: self.changes(table, sid),
            lambda found: len(found) >= count,
            f"{count} changes of {table} ({self.log_path})",
            DEADLINE_S,
        )

    def wait_cuts(self, rows: int, sid: str = "eu") -> int:
        """Wait until the cuts of this number of rows are in millstream; the number of rows. A cut
        is sent after its changes, and `apply` applies what is before the newest one."""
        return wait_until(
            lambda: sum(int(cut["rows"]) for _, cut in self.entries("", sid)),
            lambda found: found >= rows,
            f"the cuts of {rows} rows ({self.log_path})",
            DEADLINE_S,
        )

    def copied_rows(self, table: str, sid: str = "eu") -> list[list[str]]:
        """The rows of a finished copy, as lists of COPY's texts."""
        entries = [fields for _, fields in self.entries(f"{table}:copy", sid)]
        assert entries[0]["@op"] == "begin"
        assert entries[-1]["@op"] == "end", entries[-1]
        text = "".join(fields["rows"] for fields in entries[1:-1])
        rows = [line.split("\t") for line in text.splitlines()]
        assert len(rows) == int(entries[-1]["rows"])
        return rows


def url_of(connection: psycopg.Connection[Any]) -> str:
    """The URL of the database that a connection uses."""
    info = connection.info
    return f"postgresql://{info.user}@{info.host}:{info.port}/{info.dbname}"


@contextlib.contextmanager
def ended(pipeline: Pipeline) -> Iterator[Pipeline]:
    """The pipeline; its processes end with the block. pytest shows their log if the test fails."""
    try:
        yield pipeline
    finally:
        print(pipeline.log)
        pipeline.stop()
        pipeline.client.close()

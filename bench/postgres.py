"""A PostgreSQL cluster of Debian's package, in a directory of its own.

PostgreSQL refuses to run as root. As root, it runs as the user `postgres` of the package. The tests
of change data capture use it, too.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

USER = "postgres"
PREFIX = "millstream-postgres-"
START_TIMEOUT_S = 60.0
POLL_S = 0.02
SETTINGS = {
    "fsync": "off",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "log_min_messages": "warning",
}


class PostgresError(Exception):
    """PostgreSQL is missing, or a cluster did not start; the text says which."""


def programs() -> Path:
    """The folder of initdb and postgres. PostgresError if they are missing."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise PostgresError("PostgreSQL is missing: apt-get install postgresql")
    return found[-1].parent


def as_user() -> list[str]:
    """The words before a command that has to run as another user than root."""
    if os.getuid() != 0:
        return []
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]


class Postgres:
    """A cluster that may be stopped, killed and started again."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        memory: Path | None = None,
    ) -> None:
        """With `memory`, the cluster is in this folder instead of on the disk."""
        self.directory = directory
        if as_user() or memory:
            # Each pytest that starts makes the directories of all of them private again.
            self._place = tempfile.TemporaryDirectory(prefix=PREFIX, dir=memory)
            self.directory = Path(self._place.name) / directory.name
        if as_user():
            shutil.chown(self._place.name, USER, USER)
        self.log_path = directory.with_name(directory.name + ".log")
        self.port = 0
        self._settings = {**SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process that started the others."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Postgres:
        """Start the cluster, and make it if it is new. PostgresError with its log if it ends."""
        if not self.directory.exists():
            self._create()
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.port = self.port or _free_port()
        settings = {"port": str(self.port), **self._settings}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*as_user(), programs() / "postgres", "-D", self.directory, *words],
                stdout=log,
                stderr=log,
                cwd="/",
            )
        end = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                raise PostgresError(f"PostgreSQL did not start: {self.log_path.read_text()}")
            time.sleep(POLL_S)
        return self

    def _create(self) -> None:
        self.directory.mkdir(parents=True)
        if as_user():
            shutil.chown(self.directory, USER, USER)
        initdb = [programs() / "initdb", "-D", self.directory, "-U", USER, "-A", "trust"]
        subprocess.run(
            [*as_user(), *initdb, "--no-sync", "-E", "UTF8", "--locale=C"],
            check=True,
            capture_output=True,
            cwd="/",
        )

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str, **options: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(database), autocommit=True, **options)

    def create_database(self, name: str) -> str:
        """An empty database; its URL."""
        with self.connect("postgres") as connection:
            # From 15 on, the default is to write the 7 MB of the template to the WAL.
            is_copied = connection.info.server_version < 150_000
            way = "" if is_copied else " STRATEGY file_copy"
            connection.execute(f'CREATE DATABASE "{name}"{way}')
        return self.url(name)

    def stop(self) -> None:
        """A fast shutdown."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """An immediate shutdown: no checkpoint, as after a crash."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(60)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

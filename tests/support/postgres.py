"""A PostgreSQL cluster of Debian's package, in a directory of its own.

PostgreSQL refuses to run as root. As root, it runs as the user `postgres` of the package.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from .server import free_port
from .waiting import wait_until

USER = "postgres"
SETTINGS = {
    "fsync": "off",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "log_min_messages": "warning",
}


def programs() -> Path:
    """Where initdb and postgres are. Their absence is a failure, not a skip."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    assert found, "PostgreSQL is missing: apt-get install postgresql"
    return found[-1].parent


def as_user() -> list[str]:
    """The words before a command that has to run as another user than root."""
    if os.getuid() != 0:
        return []
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]


class Postgres:
    """A cluster that the test may stop, kill and start again."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        if as_user():
            # Each pytest that starts makes the directories of all of them private again.
            self._place = tempfile.TemporaryDirectory(prefix="millstream-postgres-")
            shutil.chown(self._place.name, USER, USER)
            self.directory = Path(self._place.name) / directory.name
        self.log_path = directory.with_name(directory.name + ".log")
        self.port = 0
        self._settings = {**SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Postgres:
        if not self.directory.exists():
            self._create()
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        settings = {"port": str(self.port), **self._settings}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*as_user(), programs() / "postgres", "-D", self.directory, *words],
                stdout=log,
                stderr=log,
                cwd="/",
            )
        wait_until(self._answers, what=f"PostgreSQL's start ({self.log_path})", deadline_s=60)
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
        assert self._process is not None
        assert self._process.poll() is None, self.log_path.read_text()
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
            connection.execute(f'CREATE DATABASE "{name}"')
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

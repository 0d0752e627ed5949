"""A real etcd on this machine: one member, or three."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from .server import die_with_parent
from .shards import free_range
from .waiting import wait_until

START_DEADLINE_S = 30.0
# A tenth of etcd's own times: elections are quick, and the shortest lease has one second.
TIMES = ("--heartbeat-interval", "20", "--election-timeout", "200")

UNCHECKED = ssl._create_unverified_context()


def etcd_program() -> str:
    """The program. Its absence is a failure, not a skip."""
    program = shutil.which("etcd")
    assert program, "etcd is missing: apt-get install etcd-server"
    return program


class Member:
    """One process of etcd. Its data is a folder, which a restart keeps."""

    def __init__(
        self,
        folder: Path,
        number: int,
        ports: Sequence[int],
        options: Mapping[str, str],
        host: str,
    ) -> None:
        """`ports` are those for clients and for the other members, of all members in turn."""
        self.folder = folder / f"m{number}"
        self.log = folder / f"m{number}.log"
        scheme = "https" if "--cert-file" in options else "http"
        self.url = f"{scheme}://{host}:{ports[2 * number]}"
        peers = [f"http://{host}:{port}" for port in ports[1::2]]
        self._words = [
            *(etcd_program(), "--name", f"m{number}", "--data-dir", str(self.folder), *TIMES),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", peers[number]),
            *("--initial-advertise-peer-urls", peers[number]),
            "--initial-cluster",
            ",".join(f"m{index}={peer}" for index, peer in enumerate(peers)),
            *(word for pair in options.items() for word in pair if word),
        ]
        self._context = ssl._create_unverified_context()
        if "--client-cert-auth" in options:
            self._context.load_cert_chain(options["--cert-file"], options["--key-file"])
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"},
            )

    def send(self, sign: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(sign)

    def suspend(self) -> None:
        """SIGSTOP; a thread may run until its next system call, so wait for all of them."""
        self.send(signal.SIGSTOP)
        wait_until(self._is_suspended, what="the end of all threads")

    def _is_suspended(self) -> bool:
        assert self._process is not None
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/stat")
        return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in tasks)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def is_ready(self) -> bool:
        """True if it has a leader."""
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-3000:]
        try:
            with urlopen(f"{self.url}/health", timeout=5, context=self._context) as reply:
                return b'"true"' in reply.read()
        except (URLError, OSError):
            return False


class Etcd:
    """All members."""

    def __init__(
        self,
        folder: Path,
        count: int = 1,
        options: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        first = free_range(2 * count)
        ports = range(first, first + 2 * count)
        self.members = [
            Member(folder, number, ports, options or {}, host) for number in range(count)
        ]

    @property
    def urls(self) -> str:
        return ",".join(member.url for member in self.members)

    def start(self) -> Etcd:
        for member in self.members:
            member.start()
        for member in self.members:
            wait_until(member.is_ready, what="etcd", deadline_s=START_DEADLINE_S)
        return self

    def wipe(self) -> None:
        """All disks are lost; the new etcd has the same addresses."""
        self.kill()
        for member in self.members:
            shutil.rmtree(member.folder)
        self.start()

    def kill(self) -> None:
        for member in self.members:
            member.kill()

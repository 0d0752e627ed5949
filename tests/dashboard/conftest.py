"""Servers with data, the dashboard's process, and Debian's Chromium."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests.support import forking
from tests.support.client import RawClient
from tests.support.http import fetch
from tests.support.node import libraries
from tests.support.server import ENVIRONMENT, PROGRAM, Server, free_port, redis_program
from tests.support.waiting import wait_until

T = TypeVar("T")
HOSTILE = b'<img src=x onerror="alert(1)">\xff\xfe\x00'
SCRIPT = b"</script><script>document.title='broken'</script>{{7*7}}"


def fill(client: RawClient) -> None:
    """Streams with groups, long and binary values, and names that try to be HTML."""
    for number in range(70):
        client.call("XADD", "orders", f"{1_700_000_000_000 + number * 1000}-0", "id", str(number),
                    "status", "open")  # fmt: skip
    client.call("XGROUP", "CREATE", "orders", "billing", "0")
    client.call("XREADGROUP", "GROUP", "billing", "worker", "COUNT", "9", "STREAMS", "orders", ">")
    client.call("XADD", "mixed", "1-1", "a", "1")
    client.call("XADD", "mixed", "2-1", "b", b"\xff" * 1000, "c", "x" * 10_000)
    for name in (HOSTILE, SCRIPT):
        client.call("XADD", name, "*", name, name)
        client.call("XGROUP", "CREATE", name, name, "0")
        client.call("XREADGROUP", "GROUP", name, name, "STREAMS", name, ">")
    client.call("SLOWLOG", "RESET")
    client.call("CONFIG", "SET", "slowlog-log-slower-than", "0")
    client.call("SET", b"string" + SCRIPT, HOSTILE)
    client.call("CONFIG", "SET", "slowlog-log-slower-than", "10000")
    client.call("SELECT", "2")
    client.call("XADD", "elsewhere", "*", "f", "v")
    client.call("SELECT", "0")


def fill_jobs(client: RawClient) -> None:
    """The stream `jobs` with ten entries, of which four are pending for the consumer `a` of the
    group `g`."""
    client.call("DEL", "jobs")
    for number in range(10):
        client.call("XADD", "jobs", f"{number + 1}-0", "f", "v")
    client.call("XGROUP", "CREATE", "jobs", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "a", "COUNT", "4", "STREAMS", "jobs", ">")


def fill_managed(client: RawClient) -> None:
    """The stream `mail`, with a managed group that has entries in flight, waiting and dead letters,
    and with scheduled entries."""
    client.call("DEL", "mail", "mail:dead")
    client.call("TGROUP", "mail", "senders", "START", "0", "TIMEOUT", "60000", "BACKOFF", "2",
                "600000", "3600000", "MAXDELIVER", "5", "DEADLETTER", "mail:dead",
                "MAXINFLIGHT", "100", "CONSUMERTTL", "3600000", "ORDER", "FIELD", "to", "RUN", "2",
                "WHERE", "1", "to", "PREFIX", "user")  # fmt: skip
    for number in range(1, 10):
        client.call("XADD", "mail", f"{1_700_000_000_000 + number}-1", "to", f"user-{number}")
    for consumer, count in (("worker-1", "4"), ("worker-2", "2")):
        client.call(
            "XREADGROUP", "GROUP", "senders", consumer, "COUNT", count, "STREAMS", "mail", ">"
        )
    client.call("TNACK", "mail", "senders", "worker-1", "FATAL", "REASON", "no such address",
                "IDS", "1", "1700000000001-1")  # fmt: skip
    client.call("TNACK", "mail", "senders", "worker-1", "IDS", "2", "1700000000002-1",
                "1700000000003-1")  # fmt: skip
    client.call("TSCHEDULE", "mail", "AT", "4102444800000", "reminder:7", "to", "ann")
    client.call("TSCHEDULE", "mail", "AT", "4102444900000", "", "to", "bob")


def in_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a separate thread: in this one, the browser's event loop may run."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


class Board:
    """A running dashboard."""

    def __init__(
        self,
        server: Server,
        folder: Path,
        *options: str,
        login: str = "",
        url_file: Path | None = None,
    ) -> None:
        """`login` is a user and a password for the URL, with a colon and an at sign. The URL is
        written to `url_file`, if there is one; then the dashboard is a program of its own, which
        was not forked."""
        self.port = free_port()
        self.has_rules = server.program != redis_program()
        self.address = f"http://127.0.0.1:{self.port}"
        where = [f"redis://{login}127.0.0.1:{server.port}"]
        if url_file is not None:
            url_file.write_text(where[0] + "\n")
            where = ["--url-file", str(url_file)]
        self._log = folder / f"dashboard-{self.port}.log"
        words = ["dashboard", *where, "--port", str(self.port), *options]
        environment = {**os.environ, "TZ": "UTC"}
        usual = {**ENVIRONMENT, "TZ": "UTC"}
        with self._log.open("wb") as log:
            self._process = (
                None if url_file is not None
                else forking.start(words, log, Path.cwd(), environment, usual, forking.DASHBOARD)
            ) or subprocess.Popen(
                [PROGRAM, *words], stdout=log, stderr=log, env=environment
            )  # fmt: skip
        wait_until(self._answers, what=f"the dashboard: {self.log}", deadline_s=30)

    @property
    def command_line(self) -> str:
        """The words that a list of processes shows."""
        return Path(f"/proc/{self._process.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log
        try:
            return fetch(self.port, "/static/style.css").status in (200, 401)
        except OSError:
            return False

    def path(self, page: str, key: bytes, **more: bytes) -> str:
        rest = "".join(f"&{name}={quote(value, safe='')}" for name, value in more.items())
        return f"{self.address}{page}?db=0&key={quote(key, safe='')}{rest}"

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("dashboard") / "data").start()
    with server.client() as client:
        fill(client)
        fill_managed(client)
    yield server
    server.kill()


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis") / "data", program=redis_program()).start()
    with server.client() as client:
        fill(client)
    yield server
    server.kill()


@pytest.fixture(scope="session", params=["ours", "redis"])
def board(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Board]:
    """A dashboard that only reads, of our server and of Redis."""
    made = Board(request.getfixturevalue(request.param), tmp_path_factory.mktemp("board"))
    yield made
    made.stop()


@pytest.fixture
def new_board(tmp_path: Path) -> Iterator[Callable[..., Board]]:
    made: list[Board] = []

    def make(server: Server, *options: str, login: str = "", url_file: Path | None = None) -> Board:
        made.append(Board(server, tmp_path, *options, login=login, url_file=url_file))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert path, "chromium-headless-shell is missing: scripts/need.sh test installs it"
    with sync_playwright() as playwright:
        # The shell takes three quarters of the browser's CPU time. Root, as in a container, cannot
        # use the sandbox. Without a GPU process, the pages are drawn the same and take less CPU
        # time.
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    return (libraries() / "axe-core" / "axe.min.js").read_text()


class Visit:
    """A page in a browser that fails on errors of the console and requests to other hosts."""

    def __init__(self, page: Page, axe: str) -> None:
        self.page = page
        self._axe = axe
        self.problems: list[str] = []
        self.expects_errors = False
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        page.on("request", lambda request: self._look_at(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not self.expects_errors:
            self.problems.append(text)

    def _look_at(self, url: str) -> None:
        if not re.match(r"http://127\.0\.0\.1:\d+/|data:|about:", url):
            self.problems.append(f"a request to {url}")

    def serious_findings(self) -> list[str]:
        """The serious or critical findings of axe-core."""
        self.page.evaluate(self._axe)
        found = self.page.evaluate(
            "axe.run({resultTypes: ['violations']})"
            ".then(result => JSON.stringify(result.violations))"
        )
        return [
            f"{rule['id']}: {rule['nodes'][0]['html'][:200]}"
            for rule in json.loads(found)
            if rule["impact"] in ("serious", "critical")
        ]


@pytest.fixture
def visit(chromium: Browser, axe: str) -> Iterator[Callable[..., Visit]]:
    contexts = []
    visits: list[Visit] = []

    def begin(width: int = 1400, scheme: str = "light") -> Visit:
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            timezone_id="America/New_York",
            locale="en-US",
        )
        contexts.append(context)
        visits.append(Visit(context.new_page(), axe))
        return visits[-1]

    yield begin
    for context in contexts:
        context.close()
    assert [problem for one in visits for problem in one.problems] == []

"""While data is loaded, the server replies LOADING, or sends replies that need no data.

The server runs on a thread of the test, which holds the loading until everything was asked.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from tests.support import data_directory
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.journals import append_frames
from tests.support.resp import Error, Reply, Simple
from tests.support.server import Server as ServerProcess
from tests.support.server import free_port
from tests.support.waiting import wait_until

from millstream.errors import DataError
from millstream.server import life
from millstream.server.config.loading import load
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.durability.persistence import Persistence

LOADING = Error("LOADING Redis is loading the dataset in memory")
OK = Simple("OK")
ENTRIES = 200
JOURNALED = 100


DEBUG = {"enable-debug-command": "yes"}


class HeldServer:
    """A server in a thread, whose loading stands still after its first slices until `go_on`."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
        self.port = free_port()
        self.failure: BaseException | None = None
        self._settings = {"dir": str(directory), "port": str(self.port), **DEBUG, **settings}
        self._may_go_on = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._server: life.Server
        monkeypatch.setattr(life, "LOADING_TURN_S", 0.0)
        monkeypatch.setattr(Persistence, "load_slices", self._held(Persistence.load_slices))

    def start(self) -> HeldServer:
        self._thread.start()
        return self

    def client(self) -> RawClient:
        def connected() -> RawClient | None:
            try:
                return RawClient(self.port)
            except OSError:
                return None

        client = wait_until(connected, what="a connection")
        assert client is not None
        return client

    def go_on(self) -> None:
        self._may_go_on.set()

    def stop(self) -> None:
        self._server.loop.call_soon_threadsafe(self._server.shutdown.request, "the test is over")
        self.join()

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _held(self, load_slices: Callable[..., Generator[None, None, None]]) -> object:
        def slices(
            persistence: Persistence, report: LoadReport, progress: object = None
        ) -> Generator[None, None, None]:
            inner = load_slices(persistence, report, progress)
            for number, _ in enumerate(inner):
                yield
                while number >= 2 and not self._may_go_on.is_set():
                    yield
            inner.close()

        return slices

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as failure:
            self.failure = failure

    async def _serve(self) -> None:
        words = [word for name, value in self._settings.items() for word in (f"--{name}", value)]
        self._server = life.Server(load(None, words))
        await self._server.start()
        await self._server.stopping.wait()
        await self._server.stop()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many keys in a base, and a journal after it."""
    server = ServerProcess(tmp_path_factory.mktemp("loading") / "data").start()
    with server.client() as client:
        client.pipeline([("XADD", f"s{n}", f"{n + 1}-1", "f", "v" * 1000) for n in range(ENTRIES)])
        client.call("SAVE")
        client.call("TREAD", "s0", "0", "1", "GROUP", "g", "0", "RETRY", "1", "0")
        client.call("SET", "short", "lived", "PX", "1")
        client.pipeline([("XADD", "tail", f"{n + 1}-1", "f", "v" * 1000) for n in range(JOURNALED)])
    server.kill()
    return server.directory


@pytest.fixture
def directory(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "data")


@pytest.fixture
def held(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldServer]:
    server = HeldServer(directory, monkeypatch).start()
    yield server
    server.go_on()
    server.stop()


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "lock"}


def test_commands_that_need_the_data_get_loading(held: HeldServer) -> None:
    with held.client() as client:
        for line in ("PING", "GET x", "XADD s * f v", "TREAD s 0 1 BLOCK 0", "DBSIZE", "SAVE",
                     "BGREWRITEAOF", "FLUSHALL", "KEYS *", "DEBUG RELOAD",
                     "DEBUG POPULATE 10"):  # fmt: skip
            assert client.call(*line.split()) == LOADING, line
        assert client.call("NOSUCH") == Error("ERR unknown command 'NOSUCH'")
        assert client.info("errorstats")["errorstat_LOADING"] == "count=11"


def test_commands_that_redis_answers_while_loading_are_answered(held: HeldServer) -> None:
    with held.client() as client:
        assert client.call("SELECT", "1") == OK
        assert client.call("CONFIG", "SET", "maxclients", "50") == OK
        assert client.call("CONFIG", "GET", "maxclients") == [b"maxclients", b"50"]
        assert client.call("CLIENT", "SETNAME", "early") == OK
        assert isinstance(client.call("HELLO", "2"), list)
        assert as_list(client.call("SUBSCRIBE", "c"))[0] == b"subscribe"


def test_info_shows_how_far_it_is(held: HeldServer) -> None:
    with held.client() as client:
        info = client.info("persistence")
        assert info["loading"] == "1"
        total, done = int(info["loading_total_bytes"]), int(info["loading_loaded_bytes"])
        assert 0 <= done < total
        assert float(info["loading_loaded_perc"]) == pytest.approx(100 * done / total, abs=0.01)
        assert int(info["loading_start_time"]) > 0
        assert int(info["loading_eta_seconds"]) >= 0
        held.go_on()
        info = wait_until(lambda: client.info("persistence"), lambda info: info["loading"] == "0")
        assert "loading_total_bytes" not in info


def wait_loaded(client: RawClient) -> None:
    wait_until(lambda: client.call("PING"), lambda reply: reply == Simple("PONG"))


def test_an_early_client_finds_all_data(held: HeldServer) -> None:
    with held.client() as client:
        assert client.call("XLEN", "tail") == LOADING
        held.go_on()
        wait_loaded(client)
        assert client.call("XLEN", "tail") == JOURNALED
        assert client.call("DBSIZE") == ENTRIES + 1, "the key of a millisecond is gone"
        again = ("TREAD", "s0", "", "1", "GROUP", "g", "0", "BLOCK", "0")
        assert as_bytes(as_list(as_list(client.call(*again))[0])[0]) == b"1.1", "a retry was due"


def test_a_transaction_is_refused_when_its_commands_are(held: HeldServer) -> None:
    with held.client() as client:
        assert client.call("MULTI") == OK
        assert client.call("SET", "x", "1") == LOADING
        reply = client.call("EXEC")
        assert isinstance(reply, Error)
        assert reply.text.startswith("EXECABORT")


def test_a_pause_begun_while_loading_holds_afterwards(held: HeldServer) -> None:
    with held.client() as client, held.client() as other:
        assert client.call("CLIENT", "PAUSE", "100000", "WRITE") == OK
        held.go_on()
        wait_loaded(client)
        other.send("SET", "x", "1")
        client.wait_blocked(1)
        assert client.call("CLIENT", "UNPAUSE") == OK
        assert other.read() == OK


def test_the_journal_is_switched_on_once_all_is_loaded(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldServer(directory, monkeypatch, appendonly="no").start()
    with held.client() as client:
        assert client.call("CONFIG", "SET", "appendonly", "yes") == OK
        held.go_on()
        wait_loaded(client)
        wait_until(
            lambda: client.info("persistence"),
            lambda info: info["aof_rewrites"] == "1" and info["aof_enabled"] == "1",
        )
    held.stop()
    assert "base-3.msnap" in contents(directory)


@pytest.mark.parametrize("ask", ["SHUTDOWN", "SHUTDOWN SAVE", "signal"])
@pytest.mark.parametrize("appendonly", ["yes", "no"])
def test_a_stop_while_loading_changes_no_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch, ask: str, appendonly: str
) -> None:
    before = contents(directory)
    held = HeldServer(directory, monkeypatch, appendonly=appendonly, save="3600 1").start()
    with held.client() as client:
        assert client.call("PING") == LOADING
        if ask == "signal":
            held._server.loop.call_soon_threadsafe(held._server.shutdown.stop_by_signal, "SIGTERM")
        else:
            client.send(*ask.split())
        held.join()
    assert held.failure is None
    assert contents(directory) == before


def test_damage_found_while_loading_ends_the_server(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = data_directory.last_journal(directory)
    append_frames(journal, [(10_000, b"*1\r\n$3\r\nBAD\r\n")])
    held = HeldServer(directory, monkeypatch).start()
    with held.client() as client:
        assert client.call("PING") == LOADING
        held.go_on()
        held.join()
    assert isinstance(held.failure, DataError)


def test_a_password_is_required_first(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldServer(directory, monkeypatch, requirepass="secret").start()
    with held.client() as client:
        replies: list[Reply] = [client.call("PING"), client.call("AUTH", "secret")]
        assert replies == [Error("NOAUTH Authentication required."), OK]
        assert client.call("PING") == LOADING
        held.go_on()
        wait_loaded(client)
    held.stop()

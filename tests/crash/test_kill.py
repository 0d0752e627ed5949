"""With `appendfsync always` nothing that was answered is lost, however the process ends.

Workers append, read with a group and acknowledge, each on a stream of its own, and note every
answer. The process is ended after a random number of answers (the seed is in the test's name) and
started again; then everything answered must be there. What was asked and not answered may be
there or not.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable

import pytest
from tests.support.client import ConnectionClosed, RawClient, as_bytes, as_list
from tests.support.data_directory import last_journal
from tests.support.journals import append_frames
from tests.support.resp import Error, Reply, encode_command
from tests.support.server import Server
from tests.support.waiting import wait_until

WORKERS = 4
ANSWERS_MAX = 1500
Entry = tuple[bytes, bytes]


class Worker:
    """One client's conversation, and the promises of the server in it."""

    def __init__(self, number: int, client: RawClient, seed: int) -> None:
        self.stream = f"s{number}"
        self.appended: list[Entry] = []
        self.delivered: list[bytes] = []
        self.acknowledged: set[bytes] = set()
        self.doubtful: tuple[str, object] = ("nothing", None)
        self.answers = 0
        self.failure: BaseException | None = None
        self._client = client
        self._random = random.Random(f"{seed}/{number}")
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the worker hangs"
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while True:
                self._one()
                self.answers += 1
        except (ConnectionClosed, ConnectionError):
            pass
        except BaseException as error:
            self.failure = error

    def _one(self) -> None:
        open_ids = [i for i in self.delivered if i not in self.acknowledged]
        chance = self._random.random()
        if chance < 0.6:
            self._append()
        elif chance < 0.8 or not open_ids:
            self._read()
        else:
            self._acknowledge(self._random.choice(open_ids))

    def _append(self) -> None:
        value = self._random.randbytes(self._random.choice([0, 10, 100, 5000]))
        self.doubtful = ("append", value)
        entry_id = as_bytes(self._call("TAPPEND", self.stream, "f", value))
        self.appended.append((entry_id, value))

    def _read(self) -> None:
        self.doubtful = ("read", None)
        reply = self._call(
            "TREAD", self.stream, "0", "3", "GROUP", "g", "0", "RETRY", "100000000", "0"
        )
        self.delivered += [as_bytes(as_list(entry)[0]) for entry in as_list(reply)]

    def _acknowledge(self, entry_id: bytes) -> None:
        self.doubtful = ("acknowledge", entry_id)
        assert self._call("TACK", self.stream, "g", entry_id) == 1
        self.acknowledged.add(entry_id)

    def _call(self, *arguments: str | bytes) -> Reply:
        reply = self._client.call(*arguments)
        assert not isinstance(reply, Error), reply
        self.doubtful = ("nothing", None)
        return reply

    # -- afterwards -----------------------------------------------------------------------------

    def check(self, client: RawClient) -> None:
        """All confirmed writes exist, and nothing else except unconfirmed ones."""
        entries = self._check_entries(client)
        pending = self._check_pending(client)
        self._check_offset(client, entries, pending)

    def _check_entries(self, client: RawClient) -> list[bytes]:
        reply = as_list(client.call("TRANGE", self.stream, "-", "+"))
        found = [(as_bytes(as_list(e)[0]), as_bytes(as_list(e)[2])) for e in reply]
        assert found[: len(self.appended)] == self.appended
        further = [value for _, value in found[len(self.appended) :]]
        assert further in ([], [self.doubtful[1]] if self.doubtful[0] == "append" else [])
        return [entry_id for entry_id, _ in found]

    def _check_pending(self, client: RawClient) -> list[bytes]:
        reply = client.call("XPENDING", self.stream, "g", "-", "+", "100000")
        if isinstance(reply, Error):
            assert not self.delivered, reply
            return []
        pending = [as_bytes(as_list(p)[0]).replace(b"-", b".") for p in as_list(reply)]
        wanted = [i for i in self.delivered if i not in self.acknowledged]
        if self.doubtful[0] == "acknowledge":
            doubtful = self.doubtful[1]
            assert [i for i in pending if i != doubtful] == [i for i in wanted if i != doubtful]
        elif self.doubtful[0] == "read":
            assert pending[: len(wanted)] == wanted
            assert len(pending) <= len(wanted) + 3
        else:
            assert pending == wanted
        return pending

    def _check_offset(self, client: RawClient, entries: list[bytes], pending: list[bytes]) -> None:
        known = set(self.delivered) | set(pending)
        reply = client.call("TREAD", self.stream, "0", "1000000", "GROUP", "g", "0")
        rest = [as_bytes(as_list(entry)[0]) for entry in as_list(reply)]
        assert rest == [entry_id for entry_id in entries if entry_id not in known]


@pytest.mark.parametrize(("seed", "groups"), [(0, "always"), (1, "always"), (2, "everysec")])
@pytest.mark.parametrize("end", [Server.kill, Server.stop], ids=["SIGKILL", "SIGTERM"])
def test_all_confirmed_writes_survive(
    new_server: Callable[..., Server], end: Callable[[Server], int], seed: int, groups: str
) -> None:
    """With appendfsync-groups everysec, too: a kill leaves what is written, but not synced."""
    server = new_server("data", {"appendfsync-groups": groups}).start()
    for round_number in range(2):
        _check_round(server, end, seed * 100 + round_number)


def _check_round(server: Server, end: Callable[[Server], int], seed: int) -> None:
    server.reset()
    clients = [server.client() for _ in range(WORKERS)]
    workers = [Worker(number, client, seed) for number, client in enumerate(clients)]
    enough = random.Random(seed).randint(1, ANSWERS_MAX)
    for worker in workers:
        worker.start()
    wait_until(
        lambda: sum(worker.answers for worker in workers),
        lambda answers: answers >= enough or any(w.failure for w in workers),
        f"{enough} answers",
        deadline_s=60,
    )
    end(server)
    for worker in workers:
        worker.join()
    server.start()
    with server.client() as client:
        for worker in workers:
            worker.check(client)


def test_sigterm_exits_with_code_0(new_server: Callable[..., Server]) -> None:
    server = new_server().start()
    with server.client() as client:
        client.call("TAPPEND", "s", "f", "v")
    assert server.stop() == 0


def test_sigterm_while_loading_ends_at_once_and_changes_nothing(
    new_server: Callable[..., Server],
) -> None:
    server = new_server().start()
    with server.client() as client:
        client.call("TAPPEND", "s", "f", "v")
    server.stop()
    journal = last_journal(server.directory)
    words = [b"APPEND", b"s", b"", b"f", b"v" * 30]
    append_frames(journal, (  # a second's work
        (seq, encode_command([*words[:2], b"%d-0" % (2**42 + seq), *words[3:]]))
        for seq in range(2, 150_000)
    ))  # fmt: skip
    size_bytes = journal.stat().st_size
    server.launch()
    wait_until(lambda: accepts(server.port), what="an open port")
    assert server.stop() == 0
    assert "stopped while loading" in server.log
    assert journal.stat().st_size == size_bytes


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_sigterm_closes_blocked_clients(new_server: Callable[..., Server]) -> None:
    server = new_server().start()
    with server.client() as blocked, server.client() as other:
        blocked.send("TREAD", "s", "", "1", "BLOCK", "0")
        other.wait_blocked(1)
        assert server.stop() == 0
        # Nothing, or one word of farewell, but no entry and no hanging connection.
        assert b"$" not in blocked.read_to_end()


def test_ids_continue_above_all_confirmed_ones_after_kills(
    new_server: Callable[..., Server],
) -> None:
    server = new_server().start()
    last = (0, 0)
    for _ in range(5):
        with server.client() as client:
            replies = client.pipeline([("TAPPEND", "s", "f", "v")] * 50)
        for reply in replies:
            ms, seq = map(int, as_bytes(reply).split(b"."))
            assert (ms, seq) > last
            last = (ms, seq)
        server.restart("SIGKILL")
    with server.client() as client:
        assert client.call("XLEN", "s") == 250

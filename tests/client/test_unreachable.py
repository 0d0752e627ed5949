"""Servers that hang, refuse, or come back, while a stream reads from others."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.client.apis import Api, take
from tests.client.conftest import url_of
from tests.client.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.client import Disconnected, connect
from millstream.client.core.repeating import lost
from millstream.client.core.servers import ServerState
from millstream.client.core.steps import Answer, Ask, Command
from millstream.client.threads.lanes import Lanes
from millstream.client.threads.probing import Probe

ECHO: Command[Any] = Command(("ECHO", "hello"), lambda reply: reply)


def test_a_server_that_hangs_does_not_delay_records_of_others(
    api: Api, servers: Callable[[int], list[Server]]
) -> None:
    one, two = servers(2)
    first, second = api.connect(url_of(one)), api.connect(url_of(two), timeout=3.0)
    shards = ["s", api.shard("t", second)]
    events: list[Any] = []
    with first.stream(
        shards, "trim_horizon", order="available", max_wait=None, on_event=events.append
    ) as stream:
        first.tappend("s", {"n": 0})
        take(stream, 1)
        two.signal(signal.SIGSTOP)
        try:
            while not any(isinstance(event, Disconnected) for event in events):
                stream.read(timeout=0.2)
            slowest_s = 0.0
            began_s = time.monotonic()
            while time.monotonic() - began_s < 4:  # several tries to connect again
                first.tappend("s", {"n": 1})
                asked_s = time.monotonic()
                take(stream, 1)
                slowest_s = max(slowest_s, time.monotonic() - asked_s)
            assert slowest_s < 1.0
        finally:
            two.signal(signal.SIGCONT)
        second.tappend("t", {"n": 2})
        assert take(stream, 1)[0]["n"] == "2"


@pytest.mark.parametrize("order", ["strict", "available"])
def test_next_and_a_short_read_do_not_wait_for_a_hanging_server(
    api: Api, servers: Callable[[int], list[Server]], order: str
) -> None:
    one, two = servers(2)
    first, second = api.connect(url_of(one)), api.connect(url_of(two), timeout=20.0)
    shards = ["s", api.shard("t", second)]
    with first.stream(shards, "trim_horizon", order=order, max_wait=None) as stream:
        assert stream.read(timeout=0.01) is None
        two.signal(signal.SIGSTOP)
        try:
            first.tappend("s", {"n": 0})
            began_s = time.monotonic()
            found = [stream.read(timeout=0.2), next(stream), stream.read(timeout=0.2), next(stream)]
            assert time.monotonic() - began_s < 5.0
        finally:
            two.signal(signal.SIGCONT)
        records = [record for record in found if record is not None] or take(stream, 1)
        assert [record["n"] for record in records] == ["0"]


def failing(client: Any) -> ServerState:
    return ServerState(client, failing_since_s=0.0)


def answers_of(lanes: Lanes, ask: Ask) -> list[Answer]:
    """The first answers, after every event that comes before them."""
    until_s = time.monotonic() + 10
    while not (answers := lanes.wait([ask], 1.0)):
        assert time.monotonic() < until_s
    lanes.close()
    return answers


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_failing_server_gets_requests_after_a_probe_succeeds(
    server: Server, kind: str, tmp_path: Path
) -> None:
    proxy = Proxy(server.port, path=tmp_path / "socket" if kind == "unix" else None)
    url = f"unix://{tmp_path}/socket" if kind == "unix" else proxy.url
    with connect(url, timeout=2.0) as ms:
        [answer] = answers_of(Lanes(), Ask(failing(ms), [ECHO]))
    assert (answer.replies, answer.error) == (["hello"], None)
    wait_until(lambda: proxy.connections, lambda count: count == 2)  # the probe, and redis-py's
    proxy.close()


def test_a_probe_of_a_server_that_refuses_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with connect(f"redis://127.0.0.1:{port}") as ms:
        [answer] = answers_of(Lanes(), Ask(failing(ms), [ECHO]))
    assert answer.error is not None
    assert lost(answer.error)


def test_a_probe_of_a_server_that_hangs_ends_with_the_timeout() -> None:
    lanes = Lanes()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        connect(f"redis://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5) as ms,
    ):
        ask = Ask(failing(ms), [ECHO])
        assert lanes.wait([ask], 0.05) == []
        [answer] = answers_of(lanes, ask)
    assert "did not reply in time" in str(answer.error)


@pytest.mark.parametrize("first", ["hangs", "refuses", "closes"])
def test_a_failing_server_is_found_at_its_second_address(
    server: Server, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """As that of a host with an IPv6 and an IPv4 address, whose server listens on IPv4."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        elsewhere = listener.getsockname()
        if first == "refuses":
            listener.close()
        if first == "closes":
            closer = Thread(target=lambda: listener.accept()[0].close(), daemon=True)
            closer.start()
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", address)
            for address in (elsewhere, ("127.0.0.1", server.port))
        ]
        probed = []

        def addresses(*words: Any, **options: Any) -> Any:
            probed.append(words)
            return found if len(probed) == 1 else found[1:]

        with connect(url_of(server), timeout=0.3) as ms:
            monkeypatch.setattr(socket, "getaddrinfo", addresses)
            [answer] = answers_of(Lanes(), Ask(failing(ms), [ECHO]))
    assert (answer.replies, answer.error) == (["hello"], None)


def test_no_probe_is_sent_where_the_pool_chooses_the_address() -> None:
    with connect("redis://localhost:1") as ms:
        del ms.connection_pool.connection_kwargs["host"]
        assert Probe.of(ms) is None


def test_an_ask_that_an_interruption_took_is_started_again(server: Server) -> None:
    lanes = Lanes()
    with connect(url_of(server)) as ms:
        ask = Ask(ServerState(ms), [ECHO])
        [first] = lanes.wait([ask], 5.0)
        # The answer was on its way to the core, and a signal handler raised: the core asks again.
        [second] = lanes.wait([ask], 5.0)
        lanes.close()
    assert first.replies == second.replies == ["hello"]


def test_an_interrupted_probe_is_repeated(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(probe: Probe) -> bool:
        raise KeyboardInterrupt

    lanes = Lanes()
    with connect(url_of(server)) as ms:
        ask = Ask(failing(ms), [ECHO])
        with monkeypatch.context() as patch:
            patch.setattr(Probe, "proceed", interrupt)
            with pytest.raises(KeyboardInterrupt):
                answers_of(lanes, ask)
        while not (answers := lanes.wait([ask], 5.0)):
            pass
        assert lanes.wait([], 0.5) == []  # an ask has one answer
        lanes.close()
    assert [answer.replies for answer in answers] == [["hello"]]

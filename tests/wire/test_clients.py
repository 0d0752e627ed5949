"""Several clients in a real process: subscribers that do not read, who is listed, who is
killed, what MONITOR shows."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.support.client import ConnectionClosed, RawClient, as_bytes, as_list
from tests.support.resp import Error, Simple
from tests.support.server import Server
from tests.support.waiting import wait_until

NewServer = Callable[..., Server]
MESSAGE = "x" * 1000
LIMIT_BYTES = 100_000


def lines(client: RawClient) -> list[dict[str, str]]:
    """CLIENT LIST, a dict for each client."""
    text = as_bytes(client.call("CLIENT", "LIST")).decode()
    return [dict(pair.split("=", 1) for pair in line.split(" ")) for line in text.splitlines()]


def line_of(client: RawClient, name: str) -> dict[str, str] | None:
    return next((line for line in lines(client) if line["name"] == name), None)


def subscriber(server: Server, name: str) -> RawClient:
    client = server.client()
    assert client.call("CLIENT", "SETNAME", name) == Simple("OK")
    assert client.call("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
    return client


def fill(publisher: RawClient, name: str, wanted_bytes: int) -> int:
    """Publish until so much waits for the client, or it is gone; the most that was seen."""
    most = 0
    while (line := line_of(publisher, name)) is not None and most < wanted_bytes:
        most = max(most, int(line["omem"]))
        assert line["flags"] == "P"
        publisher.pipeline([("PUBLISH", "news", MESSAGE)] * 10)
    return most


def test_a_subscriber_that_does_not_read_is_closed_at_the_limit(
    new_server: NewServer,
) -> None:
    limit = {"client-output-buffer-limit": f"pubsub {LIMIT_BYTES} 0 0"}
    server = new_server("data", limit).start()
    with server.client() as publisher, subscriber(server, "slow"), subscriber(server, "other"):
        most = fill(publisher, "slow", 10**9)
        assert LIMIT_BYTES // 2 < most < 2 * LIMIT_BYTES
        assert line_of(publisher, "slow") is None
        assert publisher.call("PING") == Simple("PONG")
    assert "bytes wait for it" in server.log


def test_a_slow_subscriber_is_closed_after_its_soft_limit_time(
    new_server: NewServer,
) -> None:
    limit = {"client-output-buffer-limit": f"pubsub 0 {LIMIT_BYTES} 1"}
    server = new_server("data", limit).start()
    with server.client() as publisher, subscriber(server, "slow"):
        assert fill(publisher, "slow", LIMIT_BYTES) >= LIMIT_BYTES
        wait_until(lambda: line_of(publisher, "slow"), lambda line: line is None, "its end")
        assert publisher.call("PUBLISH", "news", "x") == 0


def test_a_reading_subscriber_of_many_messages_is_not_closed(new_server: NewServer) -> None:
    limit = {"client-output-buffer-limit": "pubsub 2000000 0 0"}
    server = new_server("data", limit).start()
    with server.client() as publisher, subscriber(server, "reader") as reader:
        for _ in range(100):
            publisher.pipeline([("PUBLISH", "news", MESSAGE)] * 100)
            for _ in range(100):
                assert reader.read() == [b"message", b"news", MESSAGE.encode()]
        assert line_of(publisher, "reader") is not None


def test_the_line_of_client_list_is_that_of_redis(client: RawClient) -> None:
    number = r"\d+"
    pattern = (
        rf"id={number} addr=\S+:{number} laddr=\S+:{number} fd={number} name= age={number} "
        rf"idle={number} flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 watch=0 qbuf=26 "
        rf"qbuf-free={number} argv-mem=10 multi-mem=0 rbs={number} rbp={number} obl=0 oll=0 omem=0 "
        rf"tot-mem={number} events=r cmd=client\|list user=default redir=-1 resp=2 lib-name= "
        rf"lib-ver= io-thread=0 tot-net-in={number} tot-net-out={number} tot-cmds={number}\n"
    )
    own = str(client.call("CLIENT", "ID"))
    text = as_bytes(client.call("CLIENT", "LIST")).decode()
    (line,) = [line for line in text.splitlines(True) if line.startswith(f"id={own} ")]
    assert re.fullmatch(pattern, line)


def test_client_list_shows_the_state_of_a_client(server: Server) -> None:
    with server.client(3) as client, server.client() as other:

        def shown() -> dict[str, str]:
            line = line_of(other, "me")
            assert line is not None
            return line

        client.call("CLIENT", "SETNAME", "me")
        assert shown()["resp"] == "3"
        assert int(shown()["fd"]) > 2
        client.call("WATCH", "k", "l")
        assert (shown()["watch"], shown()["flags"]) == ("2", "N")
        other.call("SET", "k", "changed")
        assert shown()["flags"] == "d"
        client.call("UNWATCH")
        client.call("MULTI")
        client.call("SET", "k", "12345")
        assert (shown()["multi"], shown()["flags"]) == ("1", "x")
        assert int(shown()["multi-mem"]) >= len("SETk12345")
        client.call("EXEC")
        assert (shown()["multi"], shown()["multi-mem"], shown()["cmd"]) == ("-1", "0", "exec")
        client.call("SUBSCRIBE", "a")
        client.call("PSUBSCRIBE", "b*")
        assert [shown()[name] for name in ("sub", "psub", "flags")] == ["1", "1", "P"]
        client.call("MONITOR")
        assert shown()["flags"] == "OP"
        client.call("RESET")
        client.call("CLIENT", "SETNAME", "me")
        client.call("CLIENT", "NO-EVICT", "ON")
        client.call("CLIENT", "NO-TOUCH", "ON")
        assert [shown()[name] for name in ("sub", "psub", "flags")] == ["0", "0", "eT"]
        before = shown()
        client.call("ECHO", MESSAGE)
        after = shown()
        assert int(after["tot-cmds"]) == int(before["tot-cmds"]) + 1
        for counter in ("tot-net-in", "tot-net-out"):
            assert int(after[counter]) > int(before[counter]) + len(MESSAGE)
        client.send_raw(b"*2\r\n$4\r\nECHO\r\n$100\r\nunfinished")
        wait_until(lambda: int(shown()["qbuf"]), lambda size: size > 0, "bytes in the buffer")


def test_info_counts_subscriptions(server: Server) -> None:
    with server.client() as client, server.client() as first, server.client() as second:
        for listener in (first, second):
            listener.send("SUBSCRIBE", "a", "b")
            listener.send("PSUBSCRIBE", "a*")
            for _ in range(3):
                listener.read()
        stats = client.info("stats")
        assert (stats["pubsub_channels"], stats["pubsub_patterns"]) == ("2", "1")
        assert client.info("clients")["pubsub_clients"] == "2"
    with server.client() as client:
        wait_until(lambda: client.info("clients")["pubsub_clients"], lambda count: count == "0")
        assert client.info("stats")["pubsub_channels"] == "0"


def test_kill_spares_the_caller_by_default(new_server: NewServer) -> None:
    server = new_server().start()
    with server.client() as first, server.client() as second, server.client() as killer:
        for client in (first, second, killer):
            assert client.call("PING") == Simple("PONG")
        assert killer.call("CLIENT", "KILL", "SKIPME", "yes") == 2
        assert killer.info("clients")["connected_clients"] == "1"
        for client in (first, second):
            with pytest.raises((ConnectionClosed, ConnectionError)):
                client.call("PING")
        assert killer.call("CLIENT", "KILL", "SKIPME", "no") == 1
        assert killer.read_to_end() == b""


def test_monitor_shows_executed_commands(server: Server) -> None:
    with server.client() as monitor, server.client() as client, server.client() as quiet:
        assert monitor.call("MONITOR") == Simple("OK")
        for words in (
            ("SELECT", "3"), ("SET", 'a "b"', "x\n\x00"), ("CONFIG", "GET", "port"), ("NOSUCH",),
            ("MULTI",), ("SET", "k", "v"), ("EXEC",), ("AUTH", "unknown", "secret"),
            ("HELLO", "2", "AUTH", "unknown", "secret"), ("DEL", 'a "b"', "k"),
        ):  # fmt: skip
            client.call(*words)
        shown = []
        while not shown or "DEL" not in shown[-1]:
            reply = monitor.read()
            assert isinstance(reply, Simple)
            shown.append(reply.text)
        head = re.compile(r"\d+\.\d{6} \[(\d+) 127\.0\.0\.1:\d+\] ")
        assert all(head.match(line) for line in shown)
        assert [(head.match(line)[1], head.sub("", line)) for line in shown] == [  # type: ignore[index]
            ("3", '"SELECT" "3"'),
            ("3", r'"SET" "a \"b\"" "x\n\x00"'),
            ("3", '"MULTI"'),
            ("3", '"SET" "k" "v"'),
            ("3", '"EXEC"'),
            ("3", '"AUTH" "(redacted)" "(redacted)"'),
            ("3", '"HELLO" "2" "AUTH" "(redacted)" "(redacted)"'),
            ("3", r'"DEL" "a \"b\"" "k"'),
        ]
        assert monitor.call("RESET") == Simple("RESET")
        client.call("PING")
        assert quiet.call("PING") == Simple("PONG")
        assert not monitor.has_input()


def test_a_password_is_needed_to_subscribe(new_server: NewServer) -> None:
    server = new_server().start()
    with server.client() as admin:
        assert admin.call("CONFIG", "SET", "requirepass", "secret") == Simple("OK")
    with server.client() as client:
        refused = Error("NOAUTH Authentication required.")
        assert client.call("SUBSCRIBE", "news") == refused
        assert client.call("MONITOR") == refused
        assert client.call("AUTH", "secret") == Simple("OK")
        assert client.call("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]


def test_a_silent_client_is_read_again_after_a_pause(server: Server) -> None:
    with server.client() as silent, server.client() as other:
        silent.send("CLIENT", "REPLY", "OFF")
        silent.send("CLIENT", "PAUSE", "300")
        silent.send("SET", "first", "1")
        silent.send("SET", "second", "x" * 1_000_000)
        silent.send("CLIENT", "REPLY", "ON")
        assert silent.read() == Simple("OK")
        assert other.call("STRLEN", "second") == 1_000_000


def test_a_flood_without_replies_does_not_pile_up(server: Server) -> None:
    with server.client() as silent, server.client() as other:
        silent.send("CLIENT", "SETNAME", "flood")
        silent.send("CLIENT", "REPLY", "OFF")
        for _ in range(100):  # 6 MB
            silent.send_raw(b"TIME\r\n" * 10_000)
            line = line_of(other, "flood")
            assert line is not None
            assert int(line["qbuf"]) < 2_000_000


def test_a_client_that_reads_a_long_reply_is_not_idle(new_server: NewServer) -> None:
    server = new_server("data", {"timeout": "1"}).start()
    entries = [("XADD", "s", "*", "f", b"x" * 1_000_000)] * 40
    with server.client() as other:
        other.pipeline(entries)
    with server.client() as other, server.client() as reader, server.client() as idle:
        idle.call("PING")
        reader.call("CLIENT", "SETNAME", "reader")
        reader.send("XRANGE", "s", "-", "+")

        def age_s() -> int:
            reader.receive_some(65_536)
            line = line_of(other, "reader")
            assert line is not None, "it was closed"
            return int(line["age"])

        wait_until(age_s, lambda age: age >= 4, what="the fourth second")
        assert len(as_list(reader.read())) == len(entries)
        with pytest.raises(ConnectionClosed):
            idle.read()


def test_waits_with_an_end_are_counted(server: Server) -> None:
    with server.client() as patient, server.client() as hurried, server.client() as client:
        patient.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        hurried.send("XREAD", "BLOCK", "1000000", "STREAMS", "s", "$")
        client.wait_blocked(2)
        assert client.info("clients")["clients_in_timeout_table"] == "1"
        client.call("XADD", "s", "1-1", "f", "v")
        client.wait_blocked(0)
        assert client.info("clients")["clients_in_timeout_table"] == "0"


def test_time_has_microseconds(server: Server) -> None:
    with server.client() as client:
        moments = client.pipeline([["TIME"]] * 100)
    assert any(int(as_bytes(as_list(moment)[1])) % 1000 for moment in moments)
    assert len({tuple(as_list(moment)) for moment in moments}) > 1


def test_a_keepalive_above_the_systems_maximum_is_the_maximum(
    server: Server, client: RawClient
) -> None:
    before = client.call("CONFIG", "GET", "tcp-keepalive")
    assert client.call("CONFIG", "SET", "tcp-keepalive", "2147483647") == Simple("OK")
    try:
        with server.client() as newcomer:
            assert newcomer.call("PING") == Simple("PONG")
    finally:
        client.call("CONFIG", "SET", *as_list(before))


@pytest.mark.parametrize(
    "command",
    ["XREAD BLOCK {} STREAMS s $", "XREADGROUP GROUP g c BLOCK {} STREAMS s >", "WAIT 1 {}"],
)
@pytest.mark.parametrize("is_served", [False, True])
def test_a_reply_to_be_skipped_may_have_to_wait(
    server: Server, client: RawClient, command: str, is_served: bool
) -> None:
    client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    with server.client() as silent:
        identity = silent.call("CLIENT", "ID")
        silent.send("CLIENT", "REPLY", "SKIP")
        silent.send(*command.format(60_000 if is_served else 10).split())
        silent.send("PING")
        if is_served:
            wait_until(
                lambda: client.call("CLIENT", "UNBLOCK", str(identity)), lambda done: done == 1
            )
        assert silent.read() == Simple("PONG")
        assert silent.call("ECHO", "again") == b"again"

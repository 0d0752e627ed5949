"""The tools that talk to a running server: top, tail, health, and `serve --check`."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from redis.exceptions import InvalidResponse
from tests.support.certificates import Authority
from tests.support.resp import Simple
from tests.support.server import PROGRAM, Server, free_port
from tests.support.terminal import open_terminal
from tests.support.waiting import wait_until

from millstream.__main__ import main
from millstream.errors import StartError
from millstream.remote import reason_of
from millstream.server.config.loading import load
from millstream.server.config_check import NOT_CHECKED, check_machine

NewServer = Callable[..., Server]
COLUMNS = "db stream length size rate/s group lag pending consumers age"
LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"


def run(*words: str, url: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end in this process, which has imported its libraries; `url` is in
    MILLSTREAM_URL."""
    given = {"MILLSTREAM_URL": url or None, **environment}
    done = CliRunner().invoke(main, words, "", given, prog_name="millstream")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def run_program(*words: str) -> subprocess.CompletedProcess[str]:
    """The same in a separate process, as for a server."""
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=60)


def url_of(server: Server) -> str:
    return f"redis://127.0.0.1:{server.port}"


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence with which a tool has failed."""
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("millstream: ")
    return line.removeprefix("millstream: ")


# health


def test_health_of_a_server(server: Server) -> None:
    done = run_program("health", url_of(server))
    assert (done.returncode, done.stdout, done.stderr) == (0, "PONG\n", "")
    assert json.loads(run("health", "--json", url=url_of(server)).stdout) == {
        "healthy": True,
        "reply": "PONG",
    }


def test_no_server_is_not_healthy() -> None:
    port = free_port()
    url = f"redis://ann:secret@127.0.0.1:{port}"
    reason = f"redis://127.0.0.1:{port}: Connection refused; start the server (millstream serve), "
    reason += "or check the host and the port"
    assert refused(run("health", url)) == reason
    answer = json.loads(run("health", "--json", url).stdout)
    assert answer == {"healthy": False, "reason": reason}


def test_a_command_is_called(server: Server) -> None:
    """Replies as in redis-cli, or as JSON; words that look like options are words."""
    url = url_of(server)
    assert run("call", "XADD", "s", "1-1", "é", "a\nb", url=url).stdout == "1-1\n"
    assert run("call", "XRANGE", "s", "-", "+", "COUNT", "1", url=url).stdout == (
        '1) 1) "1-1"\n   2) 1) "é"\n      2) "a\\nb"\n'
    )
    assert json.loads(run("call", "--json", "XRANGE", "s", "-", "+", url=url).stdout) == [
        ["1-1", ["é", "a\nb"]]
    ]
    assert run("call", "INCRBY", "n", "-3", url=url).stdout == "(integer) -3\n"
    assert run("call", "GET", "absent", url=url).stdout == "(nil)\n"
    assert run("call", "KEYS", "absent", url=url).stdout == "(empty array)\n"
    assert "redis_version:" in run("call", "INFO", "server", url=url).stdout.splitlines()[1]
    run("call", "SET", "k", "\x1b[2J", url=url)
    assert run("call", "GET", "k", url=url).stdout == "\\x1b[2J\n"
    done = run("call", "GET", "s", url=url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"millstream: {url}: WRONGTYPE ")
    assert "ERR unknown command" in run("call", "NOSUCH", url=url).stderr
    greeting = run("call", "HELLO", "3", url=url).stdout.splitlines()
    assert greeting[0].startswith('1# "server" => "')
    assert '3# "proto" => (integer) 3' in greeting
    assert json.loads(run("call", "--json", "HELLO", "3", url=url).stdout)["proto"] == 3


def test_a_silent_server_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        assert "timed out" in refused(run("health", url, "--timeout", "0.2"))


def test_a_server_of_another_protocol_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9)
                connection.recv(1000)

        pool.submit(answer)
        url = f"redis://127.0.0.1:{other.getsockname()[1]}"
        reason = "the program that answers does not speak the protocol of Redis"
        assert refused(run("health", url)) == f"{url}: {reason}"
    # The parser that redis-py uses without hiredis has another text.
    assert reason_of(InvalidResponse("Protocol Error: b'HTTP/1.1 400 Bad Request'")) == reason


def test_an_unknown_option_of_a_url_is_named() -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    sentence = f"the URL {url} is invalid: unknown option foo"
    assert refused(run("health", f"{url}?foo=bar")) == sentence


def test_a_server_that_loads_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as loading:
        url = f"redis://127.0.0.1:{loading.getsockname()[1]}"
        with subprocess.Popen(
            [PROGRAM, "health", url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            connection, _ = loading.accept()
            with connection:
                while data := connection.recv(1000):
                    connection.sendall(LOADING * data.count(b"*"))
                _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "loading the dataset" in error


def test_health_over_tls_a_unix_socket_and_with_a_password(
    new_server: NewServer, tmp_path: Path
) -> None:
    authority, port, path = Authority(tmp_path), free_port(), tmp_path / "socket"
    given = {"tls-port": str(port), "tls-auth-clients": "no", "unixsocket": str(path)}
    server = new_server("data", {**authority.directives(), **given}).start()
    trusted = f"rediss://127.0.0.1:{port}?ssl_ca_certs={authority.file}"
    assert run("health", trusted).stdout == "PONG\n"
    assert "?ssl_ca_certs=FILE" in refused(run("health", f"rediss://127.0.0.1:{port}"))
    assert "needs a URL with rediss://" in refused(run("health", f"redis://127.0.0.1:{port}"))
    without = f"rediss://127.0.0.1:{server.port}"
    assert "does not speak TLS" in refused(run("health", without))
    assert run("health", f"unix://{path}").stdout == "PONG\n"
    with server.client() as client:
        assert client.call("CONFIG", "SET", "requirepass", "secret") == Simple("OK")
    assert run("health", url_of(server)).stdout == "NOAUTH\n"
    assert run("health", url_of(server), REDISCLI_AUTH="secret").stdout == "PONG\n"
    assert "password" in refused(run("health", url_of(server), REDISCLI_AUTH="wrong"))
    with server.client() as client:
        assert client.call("AUTH", "secret") == Simple("OK")
        assert client.call("ACL", "SETUSER", "default", "-ping") == Simple("OK")
    assert run("health", url_of(server), REDISCLI_AUTH="secret").stdout == "NOPERM\n"


def test_a_url_with_a_password_comes_from_a_file(server: Server, tmp_path: Path) -> None:
    """The file takes precedence over the environment, and excludes a URL in the command."""
    with server.client() as client:
        client.call("ACL", "SETUSER", "tool", "on", ">secret", "~none", "+@all")
    file = tmp_path / "url"
    file.write_text(f"\ufeffredis://tool:secret@127.0.0.1:{server.port}\n")
    other = f"redis://127.0.0.1:{free_port()}"
    assert run("health", "--url-file", str(file), url=other).stdout == "PONG\n"
    assert json.loads(run("top", "--json", "--url-file", str(file)).stdout)["streams"] == []
    file.write_text(file.read_text().replace("secret", "wrong"))
    assert "password" in refused(run("health", "--url-file", str(file)))
    for words in (("health", other), ("health", "--url", other), ("top", "--url", other)):
        done = run(*words, "--url-file", str(file))
        assert done.returncode == 2
        assert "exclude each other" in done.stderr
    file.write_text("redis://127.0.0.1 6455")
    assert "has 2 words" in refused(run("top", "--url-file", str(file)))
    file.unlink()
    assert "No such file" in refused(run("tail", "s", "--url-file", str(file)))
    with server.client() as client:
        client.call("ACL", "DELUSER", "tool")


def test_a_missing_certificate_of_the_client_is_named(
    new_server: NewServer, tmp_path: Path
) -> None:
    authority, port = Authority(tmp_path), free_port()
    new_server("data", {**authority.directives(), "tls-port": str(port)}).start()
    url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={authority.file}"
    assert "?ssl_certfile=FILE" in refused(run("health", url))


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1", "redis://127.0.0.1:port", "redis://[::1", "redis://127.0.0.1:6455/name"],
)
def test_a_url_that_is_not_understood(url: str) -> None:
    assert "is invalid" in refused(run("health", url))


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:6455", "user:secret@127.0.0.1:6455", "http://user:secret@127.0.0.1:6455?a=secret"],
)
def test_a_url_of_another_kind_is_shown_without_secrets(url: str) -> None:
    sentence = refused(run("health", url))
    assert "the URL 127.0.0.1:6455 is invalid: it has to begin with redis://" in sentence
    assert "secret" not in sentence


# top


def fill(server: Server) -> None:
    """A stream with two groups, one of which lags; one without groups, in another database."""
    with server.client() as client:
        client.call("XGROUP", "CREATE", "orders", "late", "0", "MKSTREAM")
        client.call("XGROUP", "CREATE", "orders", "done", "0")
        for number in range(5):
            client.call("XADD", "orders", f"{1000 + number}-0", "n", str(number))
        client.call("XREADGROUP", "GROUP", "late", "ann", "COUNT", "2", "STREAMS", "orders", ">")
        client.call("XREADGROUP", "GROUP", "done", "bob", "STREAMS", "orders", ">")
        client.call("XACK", "orders", "done", *[f"{1000 + number}-0" for number in range(5)])
        client.call("SET", "text", "value")
        client.call("SELECT", "3")
        client.call("XADD", b"odd \xff\x1b[31m", "*", "f", "v")


def test_top_as_json(server: Server) -> None:
    fill(server)
    done = run("top", "--json", "--interval", "0.1", url=url_of(server))
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert (answer["left_out"], answer["is_complete"]) == (0, True)
    orders, odd = answer["streams"]
    groups = {group.pop("name"): group for group in orders.pop("groups")}
    assert groups["late"].pop("oldest_age_ms") > 1_700_000_000_000
    assert groups["late"] == {
        "lag": 3, "pending": 2, "consumers": 1, "last_delivered_id": "1001-0",
    }  # fmt: skip
    assert (groups["done"]["lag"], groups["done"]["pending"]) == (0, 0)
    assert groups["done"]["oldest_age_ms"] == 0
    assert orders.pop("size_bytes") > 100
    assert orders == {
        "db": 0, "key": "orders", "length": 5, "entries_added": 5, "last_id": "1004-0",
        "rate_per_s": 0.0,
    }  # fmt: skip
    assert (odd["db"], odd["key"], odd["groups"]) == (3, "odd \\xff\x1b[31m", [])


def test_top_of_one_database_and_of_few_streams(server: Server) -> None:
    fill(server)
    words = ("top", "--json", "--interval", "0.1")
    answer = json.loads(run(*words, "--url", f"{url_of(server)}/3").stdout)
    assert [stream["db"] for stream in answer["streams"]] == [3]
    answer = json.loads(run(*words, "--match", "o*rs", url=url_of(server)).stdout)
    assert [stream["key"] for stream in answer["streams"]] == ["orders"]
    answer = json.loads(run(*words, "--streams-max", "1", url=url_of(server)).stdout)
    assert (len(answer["streams"]), answer["is_complete"]) == (1, False)


def test_top_as_a_table(server: Server) -> None:
    fill(server)
    done = run("top", "--once", "--interval", "0.1", "--sort", "pending", url=url_of(server))
    head, *rows = (line.split() for line in done.stdout.splitlines())
    assert head == COLUMNS.split()
    assert [row[1] for row in rows[:2]] == ["orders", "orders"]
    assert [(row[6], row[7], row[8]) for row in rows[:2]] == [
        ("late", "3", "2"),
        ("done", "0", "0"),
    ]
    assert "\x1b" not in done.stdout  # hostile names do not reach the terminal
    assert "odd \\xff\\x1b[31m" in done.stdout


def test_a_name_of_spaces_is_in_quotes(server: Server) -> None:
    with server.client() as client:
        client.call("XGROUP", "CREATE", "  ", "", "0", "MKSTREAM")
    done = run("top", "--once", "--interval", "0.1", url=url_of(server))
    assert '"  "' in done.stdout
    assert '""' in done.stdout


def test_a_long_name_does_not_widen_the_table(server: Server) -> None:
    key, group = "k" * 10_000, "g" * 10_000
    with server.client() as client:
        client.call("XGROUP", "CREATE", key, group, "0", "MKSTREAM")
    done = run("top", "--once", "--interval", "0.1", url=url_of(server))
    assert done.returncode == 0
    assert "k" * 99 + "… " in done.stdout
    assert "g" * 99 + "… " in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 300
    answer = json.loads(run("top", "--json", "--interval", "0.1", url=url_of(server)).stdout)
    assert [stream["key"] for stream in answer["streams"]] == [key]


def test_top_shows_streams_that_the_user_may_read(server: Server) -> None:
    fill(server)
    with server.client() as client:
        client.call("ACL", "SETUSER", "ann", "on", ">pw", "~other*", "+@all")
    url = f"redis://ann:pw@127.0.0.1:{server.port}"
    done = run("top", "--once", "--interval", "0.1", url=url)
    assert "streams left out: 2 (no permission)" in done.stdout
    with server.client() as client:
        client.call("ACL", "SETUSER", "ann", "-scan")
    assert "'scan'" in refused(run("top", "--once", url=url))
    with server.client() as client:
        client.call("ACL", "DELUSER", "ann")


def test_top_on_a_terminal_is_refreshed_until_it_is_interrupted(server: Server) -> None:
    fill(server)
    ours, theirs = open_terminal()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    with subprocess.Popen(
        [PROGRAM, "top", "--url", url_of(server), "--interval", "0.1"],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""

        def has_refreshed() -> bool:
            nonlocal shown
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 65536)
            return shown.count(b"orders") >= 4  # each table names it twice

        wait_until(has_refreshed, what="a second table")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    os.close(ours)
    assert b"Traceback" not in shown


# tail


def test_tail_from_an_id(server: Server) -> None:
    fill(server)
    done = run("tail", "orders", "--from", "1002", "--count", "2", url=url_of(server))
    assert (done.returncode, done.stderr) == (0, "")
    moments = [line.split("  ") for line in done.stdout.splitlines()]
    assert [words[1:] for words in moments] == [["1002-0", "n=2"], ["1003-0", "n=3"]]
    done = run("tail", "orders", "--from", "1002.1", "--count", "1", url=url_of(server))
    assert "1003-0" in done.stdout


def test_tail_from_a_time(server: Server) -> None:
    with server.client() as client:
        client.call("XADD", "s", "1767225599999-5", "f", "before")
        client.call("XADD", "s", "1767225600000-0", "f", "then")
    done = run("tail", "s", "--from", "2026-01-01T00:00+00:00", "--count", "1", url=url_of(server))
    assert "f=then" in done.stdout


def test_tail_as_json(server: Server) -> None:
    with server.client() as client:
        client.call("XADD", "s", "1-1", "a", "1", "b", b"\xff", "a", "2", "a", "3")
    done = run("tail", "s", "--from", "0", "--count", "1", "--json", url=url_of(server))
    assert json.loads(done.stdout) == {
        "id": "1-1",
        "fields": {"a": ["1", "2", "3"], "b": "\\xff"},
    }


def test_hostile_bytes_do_not_reach_the_terminal(server: Server) -> None:
    with server.client() as client:
        client.call("XADD", "s", "1-1", "a b", b"\x1b[2J\n\xff", "", "=")
    done = run("tail", "s", "--from", "0", "--count", "1", url=url_of(server))
    assert done.stdout.endswith('1-1  "a b"="\\x1b[2J\\n\\xff" ""="="\n')


def test_tail_distinguishes_a_backslash_from_an_escape(server: Server) -> None:
    with server.client() as client:
        client.call("XADD", "s", "1-1", "é", rb"\xff", "q", '"')
    done = run("tail", "s", "--from", "0", "--count", "1", url=url_of(server))
    assert done.stdout.endswith('1-1  é="\\\\xff" q="\\""\n')


def test_tail_follows_a_stream_that_does_not_exist_yet(server: Server) -> None:
    with subprocess.Popen(
        [PROGRAM, "tail", "s", "--url", url_of(server)], stdout=subprocess.PIPE, text=True
    ) as process:
        with server.client() as client:
            client.wait_blocked(1)
            client.call("XADD", "s", "7-1", "f", "v")
            assert process.stdout is not None
            assert process.stdout.readline().endswith("7-1  f=v\n")
            client.wait_blocked(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_tail_reports_entries_that_were_evicted(server: Server) -> None:
    fill(server)
    with server.client() as client:
        client.call("XTRIM", "orders", "MAXLEN", "2")
    done = run("tail", "orders", "--from", "1001", "--count", "1", url=url_of(server))
    assert "1003-0" in done.stdout
    assert done.stderr.startswith("millstream: entries after 1000-")


def test_tail_of_redis(redis_server: Server) -> None:
    with redis_server.client() as client:
        client.call("XADD", "s", "5-1", "f", "v")
    url = url_of(redis_server)
    assert "5-1  f=v" in run("tail", "s", "--from", "0", "--count", "1", url=url).stdout
    answer = json.loads(run("top", "--json", "--interval", "0.1", url=url).stdout)
    assert [stream["key"] for stream in answer["streams"]] == ["s"]


@pytest.mark.parametrize("start", ["yesterday", "1-", "99999999999999999999"])
def test_a_start_that_is_not_understood(start: str) -> None:
    done = run("tail", "s", "--from", start)
    assert done.returncode == 2
    assert start in done.stderr


def test_tail_of_another_type_is_refused(server: Server) -> None:
    fill(server)
    assert "WRONGTYPE" in refused(run("tail", "text", url=url_of(server)))


def test_tail_ends_if_its_password_is_refused_on_reconnecting(server: Server) -> None:
    rights = ["~*", "+tread", "+xinfo", "+command"]  # and not PING
    with server.client() as client:
        client.call("XADD", "s", "1-1", "n", "a")
        client.call("ACL", "SETUSER", "reader", "on", ">one", *rights)
        url = url_of(server).replace("//", "//reader:one@")
        with subprocess.Popen(
            [PROGRAM, "tail", "s", "--from", "0", "--url", url],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                assert process.stdout.readline().endswith("1-1  n=a\n")
                client.call("CLIENT", "KILL", "USER", "reader")
                assert "connecting again" in process.stderr.readline()
                assert process.stderr.readline() == "millstream: connected again\n"
                client.call("ACL", "SETUSER", "reader", "resetpass", ">two")
                client.call("CLIENT", "KILL", "USER", "reader")
                assert "connecting again" in process.stderr.readline()
                assert process.wait(10) == 1
                assert "password" in process.stderr.read()
            finally:
                process.kill()
                client.call("ACL", "DELUSER", "reader")


def test_tail_continues_after_a_restart_of_the_server(new_server: NewServer) -> None:
    server = new_server("data", {"appendonly": "yes"}).start()
    with server.client() as client:
        client.call("XADD", "s", "1-1", "n", "a")
    with subprocess.Popen(
        [PROGRAM, "tail", "s", "--from", "0", "--url", url_of(server), "--count", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith("1-1  n=a\n")
        server.kill()
        assert process.stderr.readline().startswith(f"millstream: {url_of(server)}: ")
        server.start()
        assert process.stderr.readline() == "millstream: connected again\n"
        with server.client() as client:
            client.call("XADD", "s", "1-2", "n", "b")
        assert process.stdout.readline().endswith("1-2  n=b\n")
        assert process.wait(30) == 0


@pytest.mark.parametrize("order", ["deleted first", "at once"])
def test_tail_shows_a_new_stream_with_smaller_ids(order: str, server: Server) -> None:
    with server.client() as client:
        client.call("XADD", "s", "5000-0", "n", "old")
        with subprocess.Popen(
            [PROGRAM, "tail", "s", "--from", "0", "--url", url_of(server), "--count", "3"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().endswith("5000-0  n=old\n")
            client.wait_blocked(1)
            client.call("DEL", "s")
            if order == "deleted first":
                assert "deleted" in process.stderr.readline()
            client.call("XADD", "s", "1-0", "n", "a")
            client.call("XADD", "s", "2-0", "n", "b")
            if order == "at once":
                assert "a new stream" in process.stderr.readline()
            assert process.stdout.readline().endswith("1-0  n=a\n")
            assert process.stdout.readline().endswith("2-0  n=b\n")
            assert process.wait(30) == 0


def test_tail_shows_ids_outside_the_calendar(server: Server) -> None:
    with server.client() as client:
        for ms in (1, 253402300800000, 2**64 - 1):
            client.call("XADD", "s", f"{ms}-0", "k", "v")
    done = run("tail", "s", "--from", "0", "--count", "3", url=url_of(server))
    assert [line.split("  ")[1] for line in done.stdout.splitlines()] == [
        "1-0", "253402300800000-0", f"{2**64 - 1}-0",
    ]  # fmt: skip
    assert done.stdout.splitlines()[-1].startswith("-  ")


def test_no_two_names_look_alike_in_json(server: Server) -> None:
    names = [b"\xff", rb"\xff", rb"\x5cxff", b"\\\xff", "\u00ff".encode(), b"\x5c"]
    with server.client() as client:
        for name in names:
            client.call("XADD", name, "1-1", "f", "v")
        client.call("XADD", "p", "1-1", *(word for name in names for word in (name, name)))
    shown = json.loads(run("top", "--json", "--interval", "0.1", url=url_of(server)).stdout)
    keys = {stream["key"] for stream in shown["streams"]}
    assert len(keys) == len(names) + 1
    tailed = run("tail", "p", "--from", "0", "--count", "1", "--json", url=url_of(server)).stdout
    fields = json.loads(tailed)["fields"]
    assert fields.keys() | {"p"} == keys
    assert all(isinstance(value, str) for value in fields.values())


def test_top_shows_an_age_after_the_largest_id(server: Server) -> None:
    largest = f"{2**64 - 1}-{2**64 - 1}"
    with server.client() as client:
        client.call("XADD", "s", largest, "f", "v")
        client.call("XGROUP", "CREATE", "s", "g", "$")
    shown = json.loads(run("top", "--json", "--interval", "0.1", url=url_of(server)).stdout)
    assert shown["streams"][0]["groups"][0]["oldest_age_ms"] == 0


# serve --check


VALID = f"millstream: the configuration is valid\nmillstream: {NOT_CHECKED}\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--bind 192.0.2.1", "bind: "),
        ("--dir /proc/x", "dir: /proc/x cannot be used: /proc: "),
        ("--unixsocket /nonexistent/s", "unixsocket: the folder of /nonexistent/s does not exist"),
        ("--unixsocket none/s", "unixsocket: the folder of /"),  # in the data directory
        ("--pidfile /nonexistent/p", "the pidfile /nonexistent/p cannot be written"),
    ],
)
def test_the_check_finds_what_this_machine_lacks(words: str, found: str, tmp_path: Path) -> None:
    config = load(None, ["--dir", str(tmp_path / "data"), *words.split()])
    if found.startswith("the pidfile"):
        assert check_machine(config)[0].startswith(found)
    else:
        with pytest.raises(StartError) as refused:
            check_machine(config)
        assert str(refused.value).startswith(found)
    assert check_machine(load(None, ["--dir", str(tmp_path / "data")])) == []
    assert list(tmp_path.iterdir()) == []


def test_a_valid_configuration(tmp_path: Path) -> None:
    file = tmp_path / "millstream.conf"
    file.write_text("port 1\nuser ann on >pw ~* +@read\n")
    done = run_program("serve", "--check", "--config", str(file), "--dir", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (0, VALID)
    assert not (tmp_path / "data").exists()


def test_an_expired_certificate_is_a_warning(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    given = authority.directives()
    authority.issue("server", days=-1)
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    done = run_program("serve", "--check", "--tls-port", "1", *words)
    assert (done.returncode, done.stdout) == (0, VALID)
    assert done.stderr.startswith("millstream: warning: the certificate has expired on ")


def test_a_configuration_incomplete_for_replicas_is_a_warning(tmp_path: Path) -> None:
    done = run_program("serve", "--check", "--replicas-durable", "1", "--appendonly", "no")
    assert done.returncode == 0
    no_journal, no_file = done.stderr.splitlines()
    assert "replicas-durable needs appendonly yes" in no_journal
    assert "there is no configuration file: after a failover, Sentinel cannot" in no_file
    file = tmp_path / "millstream.conf"
    file.write_text("replicas-durable 1\n")
    assert run_program("serve", "--check", "--config", str(file)).stderr == ""


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("portt 1", "unknown directive 'portt'; did you mean 'port'?"),
        ("bind 192.0.2.1", "bind: cannot listen on 192.0.2.1: Cannot assign requested address"),
        ("user ann +nosuch", "Error in applying operation '+nosuch'"),
        ("aclfile FOLDER/none", "opening file"),
        ("port 7000\ntls-port 7000", "port and tls-port are both 7000"),
        ("tls-port 1", "tls-port needs tls-cert-file and tls-key-file"),
    ],
)
def test_an_invalid_configuration(tmp_path: Path, line: str, sentence: str) -> None:
    file = tmp_path / "millstream.conf"
    file.write_text(line.replace("FOLDER", str(tmp_path)) + "\n")
    assert sentence in refused(run_program("serve", "--check", "--config", str(file)))


@pytest.mark.parametrize(("tool", "option"), [("top", "--interval"), ("health", "--timeout")])
def test_a_time_is_a_number(tool: str, option: str, server: Server) -> None:
    done = run(tool, option, "nan", url=url_of(server))
    assert done.returncode == 2
    assert "'nan' is not a time." in done.stderr

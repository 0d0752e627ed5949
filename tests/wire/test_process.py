"""The process around the commands: its log, its limits on clients, its stop, and the immediate
effect of CONFIG SET."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.support.client import ConnectionClosed, RawClient, as_list
from tests.support.resp import Error, Simple
from tests.support.server import Server, free_port, server_program
from tests.support.waiting import wait_until

from millstream.server.monitor import huge_pages

NewServer = Callable[..., Server]


@pytest.fixture
def new_server(new_server: NewServer) -> NewServer:
    """The servers of this file are started as by a user, not forked (support/fork_server.py)."""
    return partial(new_server, program=server_program())


def end_of(client: RawClient) -> bytes:
    """The bytes that arrive before the server closes the connection."""
    return client.read_to_end()


@pytest.mark.parametrize("option", ["--version", "--help"])
@pytest.mark.parametrize("program", ["millstream", "millstream-server"])
def test_version_and_help(program: str, option: str) -> None:
    path = str(Path(server_program()[0]).with_name(program))
    done = subprocess.run([path, option], capture_output=True, text=True, check=True)
    assert program.removesuffix("-server") in done.stdout
    assert done.stderr == ""


def test_serve_prints_the_version_of_the_program() -> None:
    path = Path(server_program()[0]).with_name("millstream")
    words = [[path, "serve", "--version"], [path, "--version"]]
    serve, program = (subprocess.check_output(line, text=True) for line in words)
    assert serve == program


def test_a_server_requests_huge_pages_itself(new_server: NewServer) -> None:
    """Other tests start servers with an environment that already requests them."""
    server = new_server(wrapper=["env", "--unset", "GLIBC_TUNABLES"]).start()
    environment = Path(f"/proc/{server.pid}/environ").read_text().split("\0")
    requested = any(f"GLIBC_TUNABLES={huge_pages.TUNABLE}=1" in line for line in environment)
    assert requested == (huge_pages.system_setting() == "madvise")


FAILING = """
import sys
from millstream.server import life, main

started = life.Server.start

async def start(server):
    await started(server)
    server.loop.call_soon(lambda: 1 / 0)

life.Server.start = start
main.server_main()
"""


def test_an_exception_of_a_callback_is_in_the_log(new_server: NewServer, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    server = new_server(
        directives={"logfile": str(log), "log-format": "json"},
        program=[sys.executable, "-c", FAILING],
    ).start()
    wait_until(lambda: "ZeroDivisionError" in log.read_text(), what="the exception")
    (line,) = [line for line in log.read_text().splitlines() if "ZeroDivisionError" in line]
    assert json.loads(line)["exception"].endswith("division by zero")
    with server.client() as client:
        assert client.call("PING") == Simple("PONG")


BROKEN_STOP = """
from millstream.server import main
from millstream.server.net.listeners import Listeners
from millstream.server.replication.role import Role

def fail(_):
    raise MemoryError

Listeners.close = Role.stop = fail
main.server_main()
"""


def test_a_failed_step_of_a_stop_does_not_prevent_the_last_sync(new_server: NewServer) -> None:
    server = new_server(
        directives={"appendfsync": "no"}, program=[sys.executable, "-c", BROKEN_STOP]
    ).start()
    with server.client() as client:
        client.call("SET", "a", "1")
    assert server.stop() == 0
    assert server.log.count("a step of it has failed") == 2
    assert server.log.splitlines()[-1].endswith("stopped")


def test_a_log_that_cannot_be_written_is_reported_once(
    new_server: NewServer, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    log.symlink_to("/dev/full")
    server = new_server(directives={"logfile": str(log)}).start()
    log.unlink()
    server.signal(signal.SIGHUP)
    wait_until(lambda: log.exists() and "SIGHUP" in log.read_text(), what="the new log file")
    assert server.stop() == 0
    assert "stopping" in log.read_text()
    assert server.log.count("the log cannot be written: No space left on device") == 1
    assert "Traceback" not in server.log


def test_serve_accepts_options_a_file_and_directives(tmp_path: Path) -> None:
    """The options count more than the file; every directive is taken."""
    file, port = tmp_path / "server.conf", free_port()
    file.write_text(f"port 1\ndir {tmp_path}/other\nmaxclients 77\n")
    serve = [str(Path(server_program()[0]).with_name("millstream")), "serve"]
    given = ["--config", str(file), "--port", str(port), "--timeout", "7", "--dir", f"{tmp_path}/d"]
    process = subprocess.Popen([*serve, *given], stdout=subprocess.DEVNULL)
    try:

        def connected() -> RawClient | None:
            assert process.poll() is None
            try:
                return RawClient(port)
            except OSError:
                return None

        client = wait_until(connected, what="a connection")
        assert client is not None
        with client:
            assert client.call("CONFIG", "GET", "maxclients") == [b"maxclients", b"77"]
            assert client.call("CONFIG", "GET", "timeout") == [b"timeout", b"7"]
            assert client.call("CONFIG", "GET", "dir") == [b"dir", f"{tmp_path}/d".encode()]
    finally:
        process.terminate()
        assert process.wait(10) == 0


def test_the_log_has_the_facts_of_a_start_and_a_stop(new_server: NewServer) -> None:
    server = new_server().start()
    assert server.stop() == 0
    for words in (f"127.0.0.1:{server.port}", str(server.directory), "appendfsync always",
                  "received SIGTERM", "stopped"):  # fmt: skip
        assert words in server.log


def test_the_log_as_json(new_server: NewServer) -> None:
    server = new_server("data", {"log-format": "json"}).start()
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    (ready,) = [line for line in lines if line["message"].startswith("ready")]
    assert ready["port"] == server.port


@pytest.mark.parametrize("ending", ["SIGTERM", "SHUTDOWN", "SHUTDOWN NOSAVE", "SHUTDOWN SAVE"])
def test_acknowledged_writes_survive_a_clean_stop(new_server: NewServer, ending: str) -> None:
    server = new_server("data", {"appendfsync": "no"}).start()
    with server.client() as client:
        assert client.call("SET", "k", "v") == Simple("OK")
        if ending == "SIGTERM":
            assert server.stop() == 0
        else:
            client.send(*ending.split())
            assert end_of(client) == b""
            wait_until(lambda: not server.is_alive(), what="the end of the server")
            assert server.stop() == 0
    server.start()
    with server.client() as client:
        assert client.call("GET", "k") == b"v"


@pytest.mark.parametrize("ending", ["SIGTERM", "SHUTDOWN"])
def test_without_a_journal_a_clean_stop_saves(new_server: NewServer, ending: str) -> None:
    server = new_server("data", {"appendonly": "no"}).start()
    with server.client() as client:
        assert client.call("SET", "k", "v") == Simple("OK")
        if ending == "SIGTERM":
            assert server.stop() == 0
        else:
            client.send("SHUTDOWN")
            assert end_of(client) == b""
    wait_until(lambda: not server.is_alive(), what="the end of the server")
    server.start()
    with server.client() as client:
        assert client.call("GET", "k") == b"v"
        assert client.call("CONFIG", "GET", "save") == [b"save", b"3600 1 300 100 60 10000"]


def test_a_journal_switched_on_keeps_later_changes(new_server: NewServer) -> None:
    server = new_server("data", {"appendonly": "no", "save": ""}).start()
    with server.client() as client:
        client.call("SET", "before", "1")
        assert client.call("CONFIG", "SET", "appendonly", "yes") == Simple("OK")
        wait_until(
            lambda: client.info("persistence"),
            lambda info: info["aof_rewrite_in_progress"] == "0" and info["aof_rewrites"] == "1",
            "the journal",
        )
        client.call("SET", "after", "2")
    server.kill()
    server.start()
    with server.client() as client:
        assert client.call("GET", "before") == b"1"
        assert client.call("GET", "after") == b"2"


def test_clients_above_maxclients_get_an_error(new_server: NewServer) -> None:
    server = new_server("data", {"maxclients": "2"}).start()
    with server.client() as first, server.client() as second:
        assert first.call("PING") == second.call("PING") == Simple("PONG")
        with server.client() as third:
            assert end_of(third) == b"-ERR max number of clients reached\r\n"
        assert first.call("CONFIG", "SET", "maxclients", "3") == Simple("OK")
        with server.client() as third:
            assert third.call("PING") == Simple("PONG")
        assert first.info("stats")["rejected_connections"] == "1"


def test_few_open_files_lower_maxclients(tmp_path: Path) -> None:
    limited = ["prlimit", "--nofile=64:64"]
    server = Server(tmp_path / "data", {"maxclients": "1000"}, wrapper=limited).start()
    try:
        assert "maxclients" in server.log
        with contextlib.ExitStack() as opened:
            clients = [opened.enter_context(server.client()) for _ in range(32)]
            assert clients[-1].call("CONFIG", "GET", "maxclients") == [b"maxclients", b"32"]
            with server.client() as refused:
                assert end_of(refused) == b"-ERR max number of clients reached\r\n"
            assert clients[0].call("CONFIG", "SET", "maxclients", "33") == Error(
                "ERR CONFIG SET failed (possibly related to argument 'maxclients') - The operating "
                "system is not able to handle the specified number of clients, try with 32"
            )
            assert clients[0].call("CONFIG", "SET", "maxclients", "31") == Simple("OK")
    finally:
        server.stop()


def test_a_request_that_is_too_long_is_logged(new_server: NewServer) -> None:
    server = new_server("data", {"client-query-buffer-limit": "1mb"}).start()
    with server.client() as client:
        # One that is still unfinished when the limit is passed.
        client.send_raw(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4000000\r\n" + b"x" * 2_000_000)
        with contextlib.suppress(ConnectionError):
            assert end_of(client) == b""
    wait_until(lambda: "client-query-buffer-limit" in server.log, what="a line in the log")


def test_writes_are_refused_without_the_data_directory(new_server: NewServer) -> None:
    server = new_server().start()
    moved = server.directory.with_name("moved")
    with server.client() as client:
        assert client.call("SET", "k", "v") == Simple("OK")
        server.directory.rename(moved)
        refused = wait_until(
            lambda: client.call("SET", "k", "w"), lambda reply: isinstance(reply, Error), "MISCONF"
        )
        assert isinstance(refused, Error)
        assert refused.text.startswith("MISCONF")
        assert str(server.directory) in server.log
        assert client.call("EXISTS", "k") == 1
        moved.rename(server.directory)
        wait_until(
            lambda: client.call("SET", "k", "x"), lambda reply: reply == Simple("OK"), "a write"
        )


def test_a_directory_that_replaces_a_removed_one_is_written(new_server: NewServer) -> None:
    server = new_server().start()
    with server.client() as client:
        assert client.call("SET", "k", "v") == Simple("OK")
        shutil.rmtree(server.directory)
        wait_until(lambda: client.call("SET", "k", "v"), lambda reply: isinstance(reply, Error))
        server.directory.mkdir()
        server.rewrite_journal()
        wait_until(lambda: client.call("SET", "l", "w"), lambda reply: reply == Simple("OK"))
    server.restart("SIGKILL")
    with server.client() as client:
        assert client.call("GET", "k") == b"v"
        assert client.call("GET", "l") == b"w"


def test_idle_clients_are_closed(new_server: NewServer) -> None:
    server = new_server("data", {"timeout": "1"}).start()
    with server.client() as client:
        assert client.call("PING") == Simple("PONG")
        assert end_of(client) == b""


def test_a_subscriber_is_not_idle(new_server: NewServer) -> None:
    """Subscribers and monitors wait by nature; one within MULTI does not."""
    server = new_server("data", {"timeout": "1"}).start()
    with server.client() as one, server.client(3) as many, server.client() as monitor:
        one.call("SUBSCRIBE", "news")
        many.call("PSUBSCRIBE", "n*")
        monitor.call("MONITOR")
        with server.client() as queueing:  # it comes last, so the others are idle for longer
            assert queueing.call("MULTI") == Simple("OK")
            assert end_of(queueing) == b""
        with server.client() as client:
            assert client.call("PUBLISH", "news", "hello") == 2
        assert as_list(one.read())[-1] == b"hello"
        assert "hello" in str(many.read())
        line = None
        while "PUBLISH" not in str(line):
            line = monitor.read()


def test_a_password_takes_effect_at_once(new_server: NewServer) -> None:
    server = new_server("data").start()
    with server.client() as old, server.client() as admin:
        assert old.call("PING") == Simple("PONG")
        assert admin.call("CONFIG", "SET", "requirepass", "secret") == Simple("OK")
        assert old.call("PING") == Simple("PONG")  # was let in before, as in Redis
        with server.client() as new:
            assert new.call("PING") == Error("NOAUTH Authentication required.")
            assert new.call("AUTH", "secret") == Simple("OK")
            assert new.call("PING") == Simple("PONG")
            assert new.call("RESET") == Simple("RESET")
            assert new.call("PING") == Error("NOAUTH Authentication required.")


def test_killed_clients_are_disconnected(server: Server) -> None:
    with server.client() as victim, server.client() as killer:
        number = victim.call("CLIENT", "ID")
        assert killer.call("CLIENT", "KILL", "ID", str(number)) == 1
        with pytest.raises((ConnectionClosed, ConnectionError)):
            victim.call("PING")
        wait_until(lambda: killer.call("CLIENT", "LIST", "ID", str(number)), lambda line: not line)


def test_quit_closes_after_the_reply(server: Server) -> None:
    with server.client() as client:
        client.send_raw(b"PING\r\nQUIT\r\nPING\r\n")
        assert end_of(client) == b"+PONG\r\n+OK\r\n"


def test_protected_mode_turns_visitors_away(new_server: NewServer) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: only asks for our own address
        own = probe.getsockname()[0]
    server = new_server("data", {"bind": f"127.0.0.1 {own}"}).start()
    with socket.create_connection((own, server.port), timeout=10) as visitor:
        assert visitor.makefile("rb").read().startswith(b"-DENIED ")
    with server.client() as client:
        assert client.call("CONFIG", "SET", "protected-mode", "no") == Simple("OK")
    with socket.create_connection((own, server.port), timeout=10) as visitor:
        visitor.sendall(b"PING\r\n")
        assert visitor.recv(100) == b"+PONG\r\n"


@pytest.mark.parametrize(
    "bind", ["* -::*", "127.0.0.1 -::*", "127.0.0.1 -::1 127.0.0.1", "-198.51.100.1 127.0.0.1"]
)
def test_addresses_are_written_as_in_redis(new_server: NewServer, bind: str) -> None:
    """The log has those at which the server really listens."""
    server = new_server("data", {"bind": bind}).start()
    with server.client() as client:
        assert client.call("CONFIG", "GET", "bind") == [b"bind", bind.encode()]
    host = "0.0.0.0" if bind.startswith("*") else "127.0.0.1"
    found = re.search(r"listens on (.+) \(process", server.log)
    assert found is not None
    assert f"{host}:{server.port}" in found[1]
    assert "-" not in found[1]
    assert "198.51.100.1" not in found[1]


def test_the_counters_start_again_with_resetstat(server: Server) -> None:
    with server.client() as client:
        assert isinstance(client.call("NOSUCH"), Error)
        assert int(client.info("stats")["total_error_replies"]) > 0
        assert client.call("CONFIG", "RESETSTAT") == Simple("OK")
        info = client.info("stats")
        assert info["total_error_replies"] == "0"
        assert int(info["total_commands_processed"]) <= 2


def test_a_signal_when_all_is_done_changes_nothing(new_server: NewServer) -> None:
    """`kill` twice, or a supervisor that is impatient."""
    server = new_server("data").start()
    with server.client() as client:
        client.call("XADD", "s", "*", "f", "v")
    server.signal(signal.SIGTERM)
    while server.is_alive():
        if "stopped" in server.log:
            server.signal(signal.SIGTERM)
    assert server.wait() == 0

"""Signals and crashes leave a line in the log."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from tests.support.server import Server
from tests.support.waiting import wait_until

NewServer = Callable[..., Server]


def wait_for_end(server: Server) -> int | None:
    wait_until(lambda: server.exit_code is not None, what="the end of the process")
    return server.exit_code


def test_a_crash_is_in_the_reopened_log(new_server: NewServer, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    server = new_server("data", {"logfile": str(log)}).start()
    with server.client() as client:
        client.call("XADD", "s", "*", "f", "a value that no report shows")
    server.signal(signal.SIGUSR1)
    wait_until(lambda: "received SIGUSR1, which does nothing; SIGHUP" in log.read_text())
    earlier = log.rename(tmp_path / "server.log.1")
    server.signal(signal.SIGHUP)
    wait_until(lambda: log.exists() and "SIGHUP" in log.read_text(), what="the new log file")
    server.signal(signal.SIGSEGV)
    assert wait_for_end(server) == -signal.SIGSEGV
    text = log.read_text()
    assert "Fatal Python error: Segmentation fault" in text
    assert "server/signals.py" in text  # the stack of a thread
    (line,) = [line for line in text.splitlines() if "has crashed" in line]
    assert line.startswith("millstream 0.1.0 has crashed: SIGSEGV after ")
    assert line.endswith("; the last command was XADD")
    assert "no report shows" not in text
    assert "crashed" not in earlier.read_text()


def test_without_a_log_file_a_crash_is_on_standard_error(new_server: NewServer) -> None:
    for wanted in ("no", "yes"):
        server = new_server(f"data-{wanted}").start()
        with server.client() as client:
            client.call("CONFIG", "SET", "crash-log-enabled", wanted)
        server.signal(signal.SIGABRT)
        assert wait_for_end(server) == -signal.SIGABRT
        is_reported = "has crashed: SIGABRT" in server.log
        assert is_reported == ("Fatal Python error: Aborted" in server.log) == (wanted == "yes")


def test_a_signal_that_ends_the_process_is_named(new_server: NewServer) -> None:
    server = new_server().start()
    server.signal(signal.SIGALRM)
    assert wait_for_end(server) == -signal.SIGALRM
    assert "stopped by SIGALRM, which has no meaning here (SIGTERM stops)" in server.log

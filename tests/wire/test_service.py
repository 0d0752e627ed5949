"""The service file, and what systemd hears from a server."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.http import fetch, scrape, value
from tests.support.resp import Null, Simple
from tests.support.server import PROGRAM, Server, free_port, server_program
from tests.support.waiting import wait_until

from millstream.server.process import BETWEEN_S, Supervision

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "millstream.service"
GATEWAY_UNIT = "millstream-gateway.service"
UNITS = (UNIT.name, "millstream-backup.service", "millstream-backup.timer", GATEWAY_UNIT)
REDIS_UNIT = Path("/lib/systemd/system/redis-server.service")  # of Debian's package
NewServer = Callable[..., Server]


class Manager:
    """The end of NOTIFY_SOCKET that systemd has."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(30)

    def next(self) -> dict[str, str]:
        """The lines of the next datagram."""
        lines = self.socket.recv(4096).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"@{tmp_path}/notify" if request.param == "abstract" else f"{tmp_path}/notify"


@pytest.fixture
def manager(address: str) -> Iterator[Manager]:
    made = Manager(address)
    yield made
    made.socket.close()


@pytest.mark.parametrize("mode", ["systemd", "auto"])
def test_systemd_is_notified_of_the_start_and_the_stop(
    new_server: NewServer, address: str, manager: Manager, mode: str
) -> None:
    wrapper = ["env", f"NOTIFY_SOCKET={address}"]
    server = new_server("data", {"supervised": mode}, wrapper=wrapper).start()
    message = manager.next()
    while "READY" not in message:  # loading
        assert int(message["EXTEND_TIMEOUT_USEC"]) >= 10_000_000
        message = manager.next()
    assert message == {"READY": "1", "STATUS": f"listening on 127.0.0.1:{server.port}"}
    with server.client() as client:
        assert client.info("server")["process_supervised"] == "systemd"
    server.signal(signal.SIGTERM)
    assert manager.next()["STOPPING"] == "1"
    assert server.wait() == 0


def test_the_time_to_start_is_extended_while_data_is_loaded(
    address: str, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    shown: list[tuple[int, int]] = []
    supervision = Supervision("systemd", {"NOTIFY_SOCKET": address})
    note = supervision.progress(lambda done, total: shown.append((done, total)))
    supervision.loading()
    note(1 << 20, 4 << 20)
    supervision.loading()  # too early to report it again
    now_s += BETWEEN_S
    supervision.loading()
    assert manager.next() == {"EXTEND_TIMEOUT_USEC": "60000000", "STATUS": "loading"}
    assert manager.next()["STATUS"] == "loading 25 % of 4 MB"
    assert shown == [(1 << 20, 4 << 20)]
    supervision.lame_duck(300)
    assert manager.next()["EXTEND_TIMEOUT_USEC"] == "360000000"
    supervision.close()


@pytest.mark.parametrize("of_process", ["", "1"])
def test_the_loop_tells_systemd_that_it_runs(
    new_server: NewServer, address: str, manager: Manager, of_process: str
) -> None:
    """The watchdog is off while SAVE keeps the loop, and for another process."""
    variables = [f"NOTIFY_SOCKET={address}", "WATCHDOG_USEC=200000"]
    if of_process:
        variables.append(f"WATCHDOG_PID={of_process}")
    server = new_server("data", {"supervised": "systemd"}, wrapper=["env", *variables]).start()
    messages = [manager.next()]
    while sum("WATCHDOG" in one for one in messages) < 4 and not of_process:
        messages.append(manager.next())
    with server.client() as client:
        assert client.call("SAVE") == Simple("OK")
    assert server.stop() == 0
    while "STOPPING" not in messages[-1]:
        messages.append(manager.next())
    changes = [one["WATCHDOG_USEC"] for one in messages if "WATCHDOG_USEC" in one]
    assert changes == ([] if of_process else ["0", "200000"])
    assert any("WATCHDOG" in one for one in messages) is not bool(of_process)


def test_without_systemd_the_server_only_warns(new_server: NewServer) -> None:
    wrapper = ["env", "--unset=NOTIFY_SOCKET"]
    server = new_server("data", {"supervised": "systemd"}, wrapper=wrapper).start()
    assert "NOTIFY_SOCKET is not set" in server.log
    with server.client() as client:
        assert client.info("server")["process_supervised"] == "no"


def test_a_dead_or_silent_manager_stops_no_server(new_server: NewServer, tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    manager = Manager(path)
    try:
        while True:  # fill the queue, so that a blocking send would wait forever
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other:
                other.sendto(b"x", path)
    except BlockingIOError:
        pass
    wrapper = ["env", f"NOTIFY_SOCKET={path}"]
    server = new_server("data", {"supervised": "systemd"}, wrapper=wrapper).start()
    manager.socket.close()
    with server.client() as client:
        assert client.call("PING") == Simple("PONG")
    assert server.stop() == 0


def test_a_reload_opens_the_log_file_again(new_server: NewServer, tmp_path: Path) -> None:
    """As `systemctl reload` does after logrotate has renamed the file."""
    (reload,) = re.findall(r"^ExecReload=/bin/kill -(\w+) \$MAINPID$", UNIT.read_text(), re.M)
    log, rotated = tmp_path / "server.log", tmp_path / "server.log.1"
    file = tmp_path / "millstream.conf"
    file.write_text("maxmemory 100mb\ntimeout 10\n")
    server = new_server("data", {"logfile": str(log)}, program=[*server_program(), str(file)])
    server.start()
    log.rename(rotated)
    with server.client() as client:
        client.call("CONFIG", "SET", "maxmemory", "50mb")
        file.write_text("maxmemory 100mb\ntimeout 20\n")
        server.signal(signal.Signals[f"SIG{reload}"])
        wait_until(lambda: log.exists() and "timeout 10 -> 20" in log.read_text(), what="a new log")
        assert client.call("CONFIG", "GET", "timeout", "maxmemory") == [
            b"timeout", b"20", b"maxmemory", b"%d" % (50 << 20),
        ]  # fmt: skip
        assert client.info("server")["config_last_reload_status"] == "ok"
        assert int(client.info("server")["config_last_reload_time"]) > 0
        file.write_text("timeout 30\ntimeouts 20\n")
        server.signal(signal.Signals[f"SIG{reload}"])
        wait_until(lambda: "unknown directive 'timeouts'" in log.read_text(), what="the refusal")
        assert client.info("server")["config_last_reload_status"] == "err"
        assert client.call("CONFIG", "GET", "timeout") == [b"timeout", b"20"]
    assert "ready" in rotated.read_text()


# A slow stop


def test_a_lame_duck_disconnects_its_clients_and_stops(new_server: NewServer) -> None:
    """A read that waits ends as at its timeout."""
    port = free_port()
    server = new_server("data", {"lame-duck-period": "2", "metrics-port": str(port)}).start()
    with server.client() as blocked, server.client() as busy, server.client() as idle:
        busy.call("MULTI")
        blocked.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        idle.wait_blocked(1)
        server.signal(signal.SIGUSR2)
        wait_until(lambda: fetch(port, "/readyz").status == 503, what="the lame duck")
        assert b"lame duck" in fetch(port, "/readyz").body
        assert fetch(port, "/healthz").status == 200
        assert value(scrape(port), "millstream_lame_duck") == 1
        with pytest.raises(ConnectionRefusedError):
            server.client()
        assert blocked.read() is Null.ARRAY
        assert blocked.read_to_end() == idle.read_to_end() == busy.read_to_end() == b""
    wait_until(lambda: not server.is_alive(), what="the stop")
    assert server.exit_code == 0
    assert "stopping: received SIGUSR2" in server.log


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_another_signal_stops_a_lame_duck_at_once(
    new_server: NewServer, number: signal.Signals
) -> None:
    server = new_server("data", {"lame-duck-period": "100000"}).start()
    with server.client() as client:
        client.call("PING")
        server.signal(signal.SIGUSR2)
        wait_until(lambda: client.info("server")["lame_duck"] == "1", what="the lame duck")
        server.signal(number)
        wait_until(lambda: not server.is_alive(), what="the stop")
    assert server.exit_code == 0


def test_a_lame_duck_that_cannot_save_serves_again(new_server: NewServer, tmp_path: Path) -> None:
    """The same addresses, a Unix socket among them, and another SIGUSR2 stops it."""
    path = tmp_path / "socket"
    directives = {"appendonly": "no", "save": "3600 1", "unixsocket": str(path)}
    server = new_server("data", directives).start()
    with server.client() as client:
        client.call("SET", "k", "v")
    hidden = server.directory.rename(tmp_path / "hidden")
    server.signal(signal.SIGUSR2)
    wait_until(lambda: "is not a lame duck any more" in server.log, what="the end of the lame duck")
    assert "the data cannot be saved" in server.log
    with server.client() as client, socket.socket(socket.AF_UNIX) as local:
        assert client.info("server")["lame_duck"] == "0"
        assert client.call("GET", "k") == b"v"
        local.connect(str(path))
    hidden.rename(server.directory)
    server.signal(signal.SIGUSR2)
    wait_until(lambda: not server.is_alive(), what="the stop")
    assert server.exit_code == 0


# The file


def installed_unit(folder: Path, source: Path = UNIT) -> Path:
    """The unit as if millstream were installed: with a program that exists on this machine."""
    text = source.read_text().replace("/opt/millstream/bin", str(Path(sys.prefix) / "bin"))
    unit = folder / source.name
    unit.write_text(text)
    return unit


def analyze(*words: str | Path) -> str:
    done = subprocess.run(
        ["systemd-analyze", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_systemd_finds_no_fault_in_the_units(tmp_path: Path) -> None:
    units = [installed_unit(tmp_path, ROOT / "deploy" / name) for name in UNITS]
    assert analyze("verify", "--man=no", *units) == ""


def exposure(unit: Path) -> float:
    shown = analyze("security", "--offline=true", "--no-pager", unit)
    (level,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", shown)
    return float(level)


def test_the_unit_exposes_less_than_the_unit_of_redis_in_debian(tmp_path: Path) -> None:
    assert exposure(installed_unit(tmp_path)) < exposure(REDIS_UNIT)
    for name in (UNITS[1], GATEWAY_UNIT):
        assert exposure(installed_unit(tmp_path, ROOT / "deploy" / name)) < exposure(REDIS_UNIT)


def test_the_drop_in_makes_a_cluster_of_the_unit(tmp_path: Path) -> None:
    unit = installed_unit(tmp_path)
    folder = tmp_path / f"{unit.name}.d"
    folder.mkdir()
    drop_in = installed_unit(folder, ROOT / "deploy" / "millstream-shards.conf")
    assert analyze("verify", "--man=no", unit) == ""
    (line,) = re.findall(r"^ExecStart=(\S.*)$", drop_in.read_text(), re.M)
    line = line.replace("${CONFIGURATION_DIRECTORY}", str(ROOT / "deploy"))
    words = line.replace("${STATE_DIRECTORY}", str(tmp_path)).split()
    done = subprocess.run([*words, "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the configuration is valid" in done.stdout


def test_the_directives_of_the_unit_and_its_file_are_valid(tmp_path: Path) -> None:
    (line,) = re.findall(r"^ExecStart=\S+ (.*)$", UNIT.read_text(), re.M)
    assert line.startswith("${CONFIGURATION_DIRECTORY}/millstream.conf ")
    directives = line.split()[1:]
    file = ROOT / "deploy" / "millstream.conf"
    words = ["serve", "--check", "--config", str(file), *directives]
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("logfile", "problem"),
    [
        (".", "Is a directory"),
        ("absent/server.log", "No such file or directory"),
        ("data/server.log", ""),
        ("made-at-the-start.log", ""),
    ],
)
def test_a_check_refuses_a_log_file_that_a_start_refuses(
    tmp_path: Path, logfile: str, problem: str
) -> None:
    """The log file is in a directory that the start makes, or in one that exists."""
    directory = tmp_path / "new" if logfile.startswith("made") else tmp_path
    (tmp_path / "data").mkdir()
    words = [PROGRAM, "serve", "--dir", str(directory), "--logfile", logfile]
    checked = subprocess.run([*words, "--check"], capture_output=True, text=True)
    assert problem in checked.stderr
    assert (checked.returncode == 0) is (problem == "")
    assert not (tmp_path / "new").exists()
    if problem:
        started = subprocess.run(words, capture_output=True, text=True)
        assert (started.returncode, started.stderr) == (checked.returncode, checked.stderr)


def test_the_server_needs_no_writable_and_executable_memory(new_server: NewServer) -> None:
    """The unit forbids it (MemoryDenyWriteExecute)."""
    server = new_server().start()
    maps = Path(f"/proc/{server.pid}/maps").read_text().splitlines()
    assert [line for line in maps if "w" in line.split()[1] and "x" in line.split()[1]] == []

"""SIGHUP reads the configuration file again: what is applied, refused, and logged."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from millstream.errors import CommandError, StartError
from millstream.server.config.config_rewrite import rewrite_file
from millstream.server.config.directives import DIRECTIVES, Config
from millstream.server.config.loading import load
from millstream.server.execution.access import Access
from millstream.server.execution.user_store import UserStore
from millstream.server.monitor import log
from millstream.server.monitor.clock_watch import ClockWatch
from millstream.server.monitor.info import Process
from millstream.server.net.listeners import Listeners
from millstream.server.settings import Settings
from millstream.server.settings_file import SettingsFile


class Running:
    """A server with a configuration file. `refuses` is the name of a directive that cannot be put
    in force; `certificates` is what is wrong with them."""

    def __init__(self, file: Path, text: str, *arguments: str) -> None:
        self.file = file
        file.write_text(text)
        self.config = load(file, arguments)
        self.refuses = self.certificates = ""
        self.is_loading = False
        self.process = Process("", file, 0, ClockWatch(lambda: 0))
        self.access = Access(Mock(), {}, bool)
        self.users = UserStore(self.config, self.access)
        self.users.load_first()
        self._settings_file = SettingsFile(
            self.config, arguments, cast(Settings, self), cast(Listeners, self),
            self.process, lambda: self.is_loading, lambda: 5000,
        )  # fmt: skip
        self._settings_file.users_differ = self.users.differ_from

    def change(self, values: dict[str, Any]) -> None:
        if self.refuses in values:
            raise CommandError("ERR CONFIG SET failed - no")
        for name, value in values.items():
            DIRECTIVES[name].set_in(self.config, value)

    def renew(self) -> bool:
        if self.certificates:
            raise StartError(self.certificates)
        return False

    def reload(self, text: str) -> str:
        """The status after SIGHUP with this text in the file."""
        self.file.write_text(text)
        self._settings_file.reload()
        return (
            self.process.state_lines().split("\r\n")[0].removeprefix("config_last_reload_status:")
        )


@pytest.fixture(autouse=True)
def no_log_file(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(log, "configure", lambda *words: None)
    monkeypatch.setattr(logging.getLogger("millstream"), "propagate", True)
    caplog.set_level(logging.INFO, "millstream")


@pytest.fixture
def running(tmp_path: Path) -> Callable[..., Running]:
    return lambda text, *arguments: Running(tmp_path / "millstream.conf", text, *arguments)


def test_only_what_has_changed_in_the_file_is_applied(
    running: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    """A value of CONFIG SET stays, and a directive that is gone has its default again."""
    server = running("timeout 10\nmaxmemory 1mb\nloglevel warning\n")
    server.config.maxmemory = 7
    assert server.reload("timeout 20\nmaxmemory 1mb\n") == "ok"
    config = server.config
    assert (config.timeout, config.maxmemory, config.loglevel) == (20, 7, "notice")
    assert "changed: timeout 10 -> 20, loglevel warning -> notice" in caplog.text
    assert server.reload("timeout 20\nmaxmemory 2mb\n") == "ok"
    assert config.maxmemory == 2 << 20
    assert server.reload("timeout 20\nmaxmemory 2mb\n") == "ok"
    assert "changes no setting" in caplog.text
    assert "config_last_reload_time:5\r\n" in server.process.state_lines()


def test_a_directive_of_the_command_line_stays(running: Callable[..., Running]) -> None:
    server = running("timeout 10\n", "--timeout", "5")
    assert server.reload("timeout 20\n") == "ok"
    assert server.config.timeout == 5


@pytest.mark.parametrize(
    "text",
    ["timeout 20\nbogus 1\n", "timeout 20\ntls-port 1\ntls-cert-file absent\n",
     "timeout 20\naclfile absent\n", "timeout 20\nuser a +nosuch\n", "timeout 20\nhz 20\n"],
)  # fmt: skip
def test_nothing_of_a_file_with_a_fault_is_applied(
    running: Callable[..., Running], caplog: pytest.LogCaptureFixture, text: str
) -> None:
    server = running("timeout 10\n")
    server.refuses = "hz"
    assert server.reload(text) == "err"
    assert server.config == Config(timeout=10)
    assert "no setting was changed" in caplog.text
    assert server.reload("timeout 30\n") == "ok"
    assert server.config.timeout == 30


def test_what_needs_a_restart_is_named_each_time(
    running: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    server = running("timeout 10\n")
    for timeout in (20, 30):
        caplog.clear()
        assert server.reload(f"port 7000\nuser a on\ntimeout {timeout}\n") == "ok"
        assert (server.config.timeout, server.config.port) == (timeout, 6455)
        sentence = "need a restart: port 6455 -> 7000, lines `user` (or ACL SETUSER)"
        assert sentence in caplog.text


def test_the_running_users_need_no_restart(
    running: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    """CONFIG REWRITE writes the same users in other words, and `default` with them."""
    server = running("user bob on >pw ~* +@all\n")
    rewrite_file(server.file, server.config, server.users.lines())
    assert server.reload(server.file.read_text()) == "ok"
    assert "restart" not in caplog.text
    assert server.reload("user bob on >other ~* +@all\n") == "ok"
    assert "lines `user` (or ACL SETUSER)" in caplog.text
    caplog.clear()
    (bob,) = (user for user in server.access.users if user.name == b"bob")
    for rule in (b"resetpass", b">other"):
        bob.apply(rule)
    assert server.reload("user bob on >other ~* +@all\n") == "ok"
    assert "restart" not in caplog.text


def test_a_secret_is_not_logged(
    running: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    server = running("requirepass first\n")
    assert server.reload("requirepass second\nmasterauth third\n") == "ok"
    assert server.config.requirepass == "second"
    assert "changed: requirepass, masterauth" in caplog.text
    assert not {word for word in ("first", "second", "third") if word in caplog.text}


def test_a_fault_of_one_part_does_not_prevent_the_others(
    running: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    server = running("timeout 10\n")
    server.certificates = "the certificate has expired"
    assert server.reload("timeout 20\n") == "err"
    assert server.config.timeout == 20
    assert "has expired; the earlier certificates stay in use" in caplog.text
    server.certificates, server.is_loading = "", True
    assert server.reload("timeout 30\n") == "err"
    assert server.config.timeout == 20
    assert "the data is being loaded" in caplog.text


@pytest.mark.parametrize("empty", ["", "\n \n", "# timeout 10\n"])
def test_a_file_that_has_become_empty_changes_nothing(
    running: Callable[..., Running], caplog: pytest.LogCaptureFixture, empty: str
) -> None:
    """An editor may truncate the file before it writes it, and a disk may be full."""
    server = running("requirepass secret\nmaxmemory 1mb\n")
    for _ in range(2):
        assert server.reload(empty) == "err"
    assert (server.config.requirepass, server.config.maxmemory) == ("secret", 1 << 20)
    assert "millstream.conf is empty; no setting was changed" in caplog.text
    assert server.reload("requirepass secret\nmaxmemory 2mb\n") == "ok"
    assert server.config.maxmemory == 2 << 20


def included(path: Path, rule: str) -> tuple[str, Path]:
    """A line that includes a file with one directive, and the file."""
    file = path / "conf.d" / "part.conf"
    file.parent.mkdir()
    file.write_text("maxmemory 1mb\nrequirepass secret\n")
    return f"timeout 10\ninclude {rule.format(file=file, folder=file.parent)}\n", file


@pytest.mark.parametrize("rule", ["{file}", "{folder}/*.conf"])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "part.conf is empty"),
        (
            "maxmemory 1mb\nrequirepass sec",
            "part.conf has no line break, as if the file was cut: add one",
        ),
        (None, "cannot read|matches no file"),
    ],
    ids=["empty", "cut", "missing"],
)
def test_a_cut_file_that_is_included_changes_nothing(
    running: Callable[..., Running], caplog: pytest.LogCaptureFixture, tmp_path: Path,
    rule: str, text: str | None, problem: str,
) -> None:  # fmt: skip
    """The error names the file or the pattern."""
    line, file = included(tmp_path, rule)
    server = running(line)
    file.unlink() if text is None else file.write_text(text)
    for _ in range(2):
        assert server.reload(line.replace("timeout 10", "timeout 20")) == "err"
    assert server.config.timeout == 10
    assert (server.config.requirepass, server.config.maxmemory) == ("secret", 1 << 20)
    assert re.search(f"conf.d/.*({problem})|({problem}).*conf.d/", caplog.text)
    file.write_text("maxmemory 2mb\nrequirepass secret\n")
    assert server.reload(line) == "ok"
    assert server.config.maxmemory == 2 << 20


def test_a_reload_warns_of_files_with_secrets_again(
    running: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    server = running("timeout 10\n")
    assert server.reload("timeout 10\n") == "ok"
    assert "every user of this machine" not in caplog.text
    server.file.chmod(0o644)
    for count in (1, 2):
        assert server.reload("requirepass secret\n") == "ok"
        assert caplog.text.count("millstream.conf contains passwords, and every user") == count
    server.file.chmod(0o600)
    assert server.reload("requirepass secret\n") == "ok"
    assert caplog.text.count("every user of this machine") == 2


def test_a_file_that_was_empty_may_stay_empty(running: Callable[..., Running]) -> None:
    assert running("# nothing\n").reload("") == "ok"


def test_the_log_warns_when_the_password_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    """Not at a start without a password, and only once."""
    machine: Any = SimpleNamespace(
        admission=SimpleNamespace(set_password_required=bool, set_restricted=bool)
    )
    access = Access(machine, {}, bool)
    for password in ("", "secret"):
        access.set_default_password(password)
    assert "no password" not in caplog.text
    for _ in range(2):
        access.set_default_password("")
    assert caplog.text.count("clients need no password now") == 1

"""The log of who did what: which commands are in it, and that no line has a secret."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.in_process import InProcessServer

from millstream.commands.access.users import changed_user
from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS
from millstream.server.config.directives import DIRECTIVES, NAMES
from millstream.server.config.ignored_directives import ALIASES
from millstream.server.config.kinds import SECRET
from millstream.server.execution.access import Access
from millstream.server.execution.audit import (
    COMMANDS_PER_S,
    LOGINS_PER_S,
    ONLY_WITH,
    REFUSALS_PER_S,
    Audit,
)
from millstream.server.monitor.secrets import SECRET_DIRECTIVES, described, without_secrets

load_table()
ROWS = [row for one in COMMANDS.values() for row in (one, *one.subcommands.values())]
# Commands of @admin and @dangerous that change nothing, or only data as other writes do.
NOT_AUDITED = {
    "acl|getuser", "acl|list", "acl|users", "acl|dryrun", "client|list", "config|get", "info",
    "keys", "lastsave", "latency|latest", "latency|history", "latency|graph", "latency|doctor",
    "latency|histogram", "module|list", "role", "slowlog|get", "slowlog|len",
    # The link of a replica, which replication logs; it acknowledges with REPLCONF each second.
    "psync", "sync", "replconf",
    # They write one key, as SET does.
    "restore", "trestore",
    # They change nothing: the map of a cluster is not changed by its nodes.
    "cluster|replicas", "cluster|slaves", "cluster|count-failure-reports", "cluster|bumpepoch",
    "cluster|saveconfig",
    # What the nodes of a cluster send each other.
    "cluster|peer", "cluster|promise", "cluster|relay", "cluster|seen",
    "cluster|copyslots", "cluster|ackslots", "cluster|handslots", "cluster|returnslots",
}  # fmt: skip
# Directives whose name looks like a secret's.
NOT_SECRET = {
    "metrics-auth", "cluster-etcd-password-file", "cluster-etcd-key", "cluster-secret-file",
    "tls-auth-clients", "tls-auth-clients-user", "tls-key-file", "tls-client-key-file",
    "key-load-delay", "rdb-key-save-delay", "notify-keyspace-events", "tracking-table-max-keys",
}  # fmt: skip


def test_each_command_of_administrators_is_audited_or_named() -> None:
    administrative = {row.name for row in ROWS if row.categories & {"admin", "dangerous"}}
    audited = {row.name for row in ROWS if "audited" in row.traits}
    assert audited & NOT_AUDITED == set()
    assert audited | NOT_AUDITED == administrative
    assert ONLY_WITH.keys() <= audited


def test_each_directive_that_may_be_a_secret_is_one() -> None:
    secret = {name for name, row in DIRECTIVES.items() if row.kind is SECRET}
    assert {name.encode() for name in secret} == SECRET_DIRECTIVES
    signs = ("pass", "auth", "secret", "key", "token", "credential")
    looks_secret = {name for name in DIRECTIVES if any(sign in name for sign in signs)}
    assert looks_secret - secret == NOT_SECRET
    assert not [name for name in ALIASES.values() if name in secret]


@pytest.mark.parametrize("name", sorted(SECRET_DIRECTIVES))
def test_no_form_shows_a_secret_directive(name: bytes) -> None:
    for words in (
        [b"CONFIG", b"SET", name, b"s3cret"],
        [b"config", b"set", name.upper(), b"s3cret", b"maxmemory", b"1"],
        [b"CONFIG", b"SET", b"maxmemory", b"1", name, b"s3cret"],
    ):
        assert b"s3cret" not in without_secrets(words)
        assert b"s3cret" not in described(words, NAMES)


HIDDEN = b"(redacted)"


@pytest.mark.parametrize(
    ("request_line", "shown"),
    [
        ("CONFIG SET maxmemory 1gb", "CONFIG SET maxmemory 1gb"),
        ("CONFIG SET port 1 requirepass pw hz 5", "CONFIG SET port 1 requirepass * hz 5"),
        # A value is missing, or a name is misspelled.
        ("CONFIG SET maxmemory requirepass pw", "CONFIG SET maxmemory requirepass *"),
        ("CONFIG SET maxmemory requirepass pw hz", "CONFIG SET maxmemory requirepass * *"),
        ("CONFIG SET requirpass pw", "CONFIG SET * *"),
        ("CONFIG SET masteruser me masterauth pw", "CONFIG SET masteruser * masterauth *"),
        (
            "ACL SETUSER bob on >pw <pw #ab !ab ~k* %R~k &c +@all -get resetkeys",
            "ACL SETUSER bob on >* <* #* !* ~k* %R~k &c +@all -get resetkeys",
        ),
        ("ACL SETUSER bob ON pw (+get ~x) (pw ~x)", "ACL SETUSER bob ON * (+get ~x) * ~x)"),
        ("ACL SETUSER >pw on", "ACL SETUSER >* on"),
        ("ACL DELUSER bob", "ACL DELUSER bob"),
        ("CLIENT KILL USER bob", "CLIENT KILL USER bob"),
    ],
)
def test_words_of_administrators(request_line: str, shown: str) -> None:
    found = described(request_line.encode().split(), NAMES)
    assert [word.replace(HIDDEN, b"*").decode() for word in found] == shown.split()


class Lines(logging.Handler):
    """Collects the records of the server's log."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def take(self) -> list[str]:
        found = [record.getMessage() for record in self.records]
        self.records.clear()
        return found


@pytest.fixture
def log() -> Any:
    logger = logging.getLogger("millstream")
    lines, level = Lines(), logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(lines)
    logger.setLevel(level)


class Place:
    """A server with an administrator and a user who may only PING."""

    def __init__(self) -> None:
        self.server: Any = InProcessServer()
        self.server.clients = {}
        self.server.pubsub = SimpleNamespace(forget=lambda client: None)
        self.access = self.server.access = Access(
            self.server.executor, self.server.clients, lambda client: None
        )
        self.admin = self.player()
        self.low = self.player()
        low = changed_user(self.access.users.new(b"low"), [b"on", b"+ping", b"+multi", b"+exec"])
        self.access.users.add(low)
        self.access.log_in(self.low, low)

    def player(self) -> Any:
        client: Any = self.server.player()
        client.file_number = client.total_bytes_in = client.total_bytes_out = 0
        client.address = f"10.0.0.{client.id}:5000"
        self.server.clients[client.id] = client
        self.access.log_in_default(client)
        return client


def test_a_change_has_user_address_and_words(log: Lines) -> None:
    place = Place()
    place.admin.call("ACL SETUSER bob on >pw ~* +@all")
    (record,) = log.records
    assert record.facts == {
        "event": "admin_command", "user": "default", "address": "10.0.0.1:5000", "client_id": 1,
        "client_name": "", "db": 0, "command": "acl|setuser", "result": "OK",
        "words": ["ACL", "SETUSER", "bob", "on", ">(redacted)", "~*", "+@all"],
    }  # fmt: skip
    assert log.take() == [
        "admin    user default, 10.0.0.1:5000: ACL SETUSER bob on >(redacted) ~* +@all"
    ]
    for line in ("GET x", "SET x 1", "ACL LIST", "ACL LOG", "PING", "ACL SETUSER"):
        place.admin.call(line)
    assert log.take() == []
    place.admin.call("ACL LOG RESET")
    assert log.take() == ["admin    user default, 10.0.0.1:5000: ACL LOG RESET"]


def test_each_command_of_a_transaction_has_its_line(log: Lines) -> None:
    place = Place()
    for line in ("MULTI", "SWAPDB 0 1", "SET x 1", "ACL DELUSER default", "SWAPDB 0 99", "FLUSHDB"):
        place.admin.call(line)
    assert log.take() == []
    place.admin.call("EXEC")
    who = "admin    user default, 10.0.0.1:5000: "
    assert log.take() == [
        f"{who}SWAPDB 0 1",
        f"{who}ACL DELUSER default, failed: ERR",
        f"{who}SWAPDB 0 99, failed: ERR",
        f"{who}FLUSHDB",
    ]
    for line in ("MULTI", "FLUSHDB", "DISCARD", "FLUSHDB a b", "MULTI", "GET", "FLUSHDB", "EXEC"):
        place.admin.call(line)
    assert log.take() == [f"{who}FLUSHDB a b, failed: ERR"]


def test_the_user_is_the_one_who_sent_the_command(log: Lines) -> None:
    place = Place()
    place.access.log_in(place.low, place.access.users.default)
    place.low.call("ACL SETUSER self on nopass +@all")
    place.access.log_in(place.low, place.access.users.get(b"self"))
    place.low.call("ACL DELUSER self")  # which makes the client the user `default`
    assert log.take()[-1] == "admin    user self, 10.0.0.2:5000: ACL DELUSER self"


def test_refused_commands_cannot_hide_others(log: Lines) -> None:
    place = Place()
    for _ in range(100):
        place.low.call("FLUSHALL")
    place.admin.call("SWAPDB 0 1")
    lines = log.take()
    refused = "admin    user low, 10.0.0.2:5000: FLUSHALL, refused: NOPERM"
    assert lines[:-1] == [refused] * REFUSALS_PER_S
    assert lines[-1].endswith(": SWAPDB 0 1")
    place.access.users.default.apply(b">pw")
    place.access.changed(place.access.users.default)
    stranger = place.player()
    stranger.call("SWAPDB 0 1")
    assert log.take() == []


def test_lines_that_were_left_out_are_counted(log: Lines) -> None:
    now_s = 100.0
    audit = Audit(lambda: now_s)
    client = SimpleNamespace(address="10.0.0.9:1", id=4, name=b"", db_index=0)
    for _ in range(LOGINS_PER_S + 37):
        audit.login_failed(client, b"bob", b"auth")
    audit.tick_second()
    failed = "login    failed for user bob, 10.0.0.9:1 (AUTH)"
    assert log.take() == [failed] * LOGINS_PER_S
    now_s += 1
    audit.login_failed(client, b"bob", b"auth")
    assert log.take() == [f"{failed} (and 37 more since the last such line)"]
    for _ in range(COMMANDS_PER_S + 3):
        audit.command(client, b"x", "flushall", [b"FLUSHALL"], None)
    now_s += 1
    audit.tick_second()
    audit.tick_second()
    assert log.take()[COMMANDS_PER_S:] == ["admin    and 3 more commands of administrators"]


def test_a_failed_login_shows_a_short_clean_name(log: Lines) -> None:
    place = Place()
    place.admin.call("AUTH " + "n" * 5000 + " hunter2")
    place.admin.call("HELLO 3 AUTH stranger hunter2")
    long, other = log.take()
    assert len(long) < 300
    assert "4872 more bytes" in long
    assert other == "login    failed for user stranger, 10.0.0.1:5000 (HELLO)"
    place.access.refuse_login(place.admin, b"a\nb\x1b", b"AUTH")
    assert log.take() == [r'login    failed for user "a\nb\x1b", 10.0.0.1:5000 (AUTH)']

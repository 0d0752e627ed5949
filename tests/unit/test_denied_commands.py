"""A denied command changes nothing, reveals nothing and wakes no client: every command of the
table, for a user without any command and for one without any key."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Simple, encode_command, show

from millstream.commands.access.users import Users, changed_user
from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS, Command
from millstream.server.execution.access import Access

load_table()
# A container alone, without a subcommand, is an unknown command before it is a denied one.
ALONE = [r for r in COMMANDS.values() if not (r.subcommands or r.unlisted) or r.arity == -1]
ROWS = [*ALONE, *(sub for row in COMMANDS.values() for sub in row.subcommands.values())]
# Requests with keys whose positions are found by their words.
WITH_KEYS = {
    "xread": "XREAD STREAMS s 0", "xreadgroup": "XREADGROUP GROUP g c STREAMS s >",
    "tmread": "TMREAD 1 STREAMS s 0", "msetex": "MSETEX 1 str v", "eval": "EVAL x 1 str",
    "evalsha": "EVALSHA x 1 str",
    "tappendmany": "TAPPENDMANY 1 s PRODUCER p 1 1 1 f v",
}  # fmt: skip


class Place:
    """A server with data, a client that waits, and clients of restricted users."""

    def __init__(self) -> None:
        self.server: Any = InProcessServer()
        self.server.clients = {}
        self.server.killed = []
        self.server.pubsub = SimpleNamespace(forget=lambda client: None)
        self.access = self.server.access = Access(
            self.server.executor, self.server.clients, self.server.killed.append
        )
        self.admin = self.player()
        for line in ("XADD s 1-0 f v", "XADD s 2-0 f v", "XGROUP CREATE s g 0", "SET str v"):
            assert not isinstance(self.admin.call(line), Error)
        self.waiting = self.player()
        self.waiting.send("XREAD BLOCK 0 STREAMS s $")

    def player(self, *rules: str) -> Any:
        client: Any = self.server.player()
        client.file_number = client.total_bytes_in = client.total_bytes_out = 0
        self.server.clients[client.id] = client
        self.access.log_in_default(client)
        if rules:
            user = self.access.users.new(b"u")
            user = changed_user(user, [rule.encode() for rule in rules])
            self.access.users.add(user)
            self.access.log_in(client, user)
        return client

    def state(self) -> object:
        """The state that a denied command must not change."""
        self.server.settle()
        return (
            sorted(self.admin.call("KEYS *")),
            show(self.admin.call("XINFO STREAM s FULL")),
            self.admin.call("GET str"),
            len(self.server.persistence.payloads),
            self.waiting.unread,
        )


def request_of(row: Command) -> list[bytes]:
    """A request with the least number of words, and the key `s` wherever there may be a key."""
    if row.name in WITH_KEYS:
        return WITH_KEYS[row.name].encode().split()
    name = row.name.encode().split(b"|")
    return name + [b"s"] * (abs(row.arity) - len(name))


def call(place: Place, client: InProcessClient, words: list[bytes]) -> object:
    place.server.executor.feed(client, encode_command(words))
    place.server.settle()
    return client.read()


def test_without_the_command() -> None:
    for row in ROWS:
        if "no_auth" in row.flags:  # AUTH, HELLO, RESET and QUIT are always allowed
            continue
        place = Place()
        client = place.player("on", "nopass", "~*", "&*", "-@all")
        before = place.state()
        reply = call(place, client, request_of(row))
        expected = f"NOPERM User u has no permissions to run the '{row.name}' command"
        if row.name == "exec":
            expected = f"EXECABORT Transaction discarded because of: {expected}"
        assert reply == Error(expected)
        assert place.state() == before, row.name
        assert place.access.log.counts == {"command": 1}, row.name


def has_keys(row: Command) -> bool:
    """True if every request of a command has keys. A shard channel is none."""
    at_fixed_places = row.keys[0] > 0 and any(spec.is_key for spec in row.key_specs)
    return at_fixed_places or row.name in WITH_KEYS


REFUSED = Error("NOPERM No permissions to access a key")


def test_without_the_key() -> None:
    rows = [row for row in ROWS if has_keys(row)]
    assert len(rows) > 100
    for row in rows:
        place = Place()
        client = place.player("on", "nopass", "~other", "+@all")
        before = place.state()
        assert call(place, client, request_of(row)) == REFUSED, row.name
        assert place.state() == before, row.name


@pytest.mark.parametrize("line", ["TSEAL s {}", "TSEAL s ELSEWHERE {}", "tseal s {}"])
@pytest.mark.parametrize("names", ["CHILDREN new", "children s2 new", "CHILDREN new s2"])
def test_every_child_of_a_sealed_stream_needs_permission(line: str, names: str) -> None:
    place = Place()
    client = place.player("on", "nopass", "~s*", "+@all")
    request = line.format(names)
    before = place.state()
    for rule in ("~s", "%R~new"):
        assert client.call(request) == REFUSED
        assert show(client.call(f"ACL DRYRUN u {request}")) == show(
            b"User u has no permissions to access the 'new' key"
        )
        client.call(f"ACL SETUSER u {rule}")
    assert place.state() == before
    (entry, *_) = place.access.log.newest(1)
    assert (entry.reason, entry.subject) == ("key", b"new")
    client.call("ACL SETUSER u %W~new")
    assert client.call(f"ACL DRYRUN u {request}") == Simple("OK")
    assert not isinstance(client.call(request), Error)


def test_a_queued_tseal_is_checked_again() -> None:
    place = Place()
    client = place.player("on", "nopass", "~s", "~new", "+@all")
    client.call("MULTI")
    client.call("TSEAL s CHILDREN new")
    place.admin.call("ACL SETUSER u resetkeys ~s")
    (reply,) = client.call("EXEC")
    assert isinstance(reply, Error)
    assert "touch the specified keys" in reply.text
    assert place.admin.call("EXISTS new") == 0


GROUP_READS = [
    "TREAD s 0 5 GROUP g 0", "TREAD s2 0 5 GROUP g 0", "TREAD s $ 5 BLOCK 0 group new 0",
    "TREAD s 0 5 RETRY 1000 0 GROUP g 0 WITHINFO", "tread s 0 0 GROUP g 5",
]  # fmt: skip


@pytest.mark.parametrize("line", GROUP_READS)
@pytest.mark.parametrize(("sign", "other"), [("%R", "%W"), ("%W", "%R")])
def test_a_tread_with_a_group_needs_to_read_and_to_write(line: str, sign: str, other: str) -> None:
    place = Place()
    client = place.player("on", "nopass", f"{sign}~s*", "+@all")
    before = place.state()
    key = line.split()[1].encode()
    assert client.call(line) == REFUSED
    assert show(client.call(f"ACL DRYRUN u {line}")) == show(
        b"User u has no permissions to access the '%b' key" % key
    )
    (entry, *_) = place.access.log.newest(1)
    assert (entry.reason, entry.subject) == ("key", key)
    client.call(f"ACL SETUSER u {other}~*")  # a pattern must allow both
    assert client.call(line) == REFUSED
    assert place.state() == before
    client.call(f"ACL SETUSER u {other}~s*")
    assert client.call(f"ACL DRYRUN u {line}") == Simple("OK")
    client.send(line)
    assert not isinstance(client.read() if client.unread else None, Error)


@pytest.mark.parametrize("line", ["TREAD s 0 5", "TREAD s 0 5 BLOCK 0 RETRY 1 1 WITHINFO"])
def test_a_tread_without_a_group_only_reads(line: str) -> None:
    client = Place().player("on", "nopass", "%R~s", "+@all")
    assert not isinstance(client.call(line), Error)


def test_a_waiting_group_tread_ends_without_write_permission() -> None:
    place = Place()
    client = place.player("on", "nopass", "~s", "+@all")
    client.send("TREAD s $ 5 BLOCK 0 GROUP new 0")
    place.admin.call("ACL SETUSER u resetkeys %R~s")
    assert client.read() == REFUSED


def test_a_waiting_plain_tread_needs_read_permission_only() -> None:
    place = Place()
    client = place.player("on", "nopass", "~s", "+@all")
    client.send("TREAD s $ 5 BLOCK 0")
    place.admin.call("ACL SETUSER u resetkeys %R~s")
    place.server.settle()
    assert not client.unread
    place.admin.call("ACL SETUSER u resetkeys %W~s")
    assert client.read() == REFUSED


LINES = [
    "XADD s * f v", "XADD a * f v", "SET str v", "SET a v", "GET str", "GET a", "DEL s", "DEL a",
    "XREAD STREAMS s a 0 0", "XREADGROUP GROUP g c STREAMS s >", "TREAD a 0 5 GROUP g 0",
    "TREAD s 0 5 GROUP g 0", "RENAME a s", "COPY s a REPLACE", "FLUSHALL", "MULTI", "EXEC",
    "DISCARD", "XTRIM s MAXLEN 0", "EXPIRE str 1", "TAPPEND a f v", "TPOLICY s MAXLEN 1",
]  # fmt: skip
CHANGES = ["~s", "%R~s", "%W~s", "resetkeys", "~a", "+@all", "-@write", "+@write", "-del", "+del"]
STEPS = st.lists(st.sampled_from([*LINES, *(f"rule {change}" for change in CHANGES)]), max_size=30)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_denied_requests_have_no_effect(steps: list[str]) -> None:
    """The allowed requests of a restricted user, sent by another client to a second server, leave
    the same data: denied requests had no effect."""
    first, second = Place(), Place()
    client = first.player("on", "nopass", "~a*", "+@all", "-flushall")
    other = second.player()
    for line in steps:
        if line.startswith("rule "):
            user = first.access.users.get(b"u")
            assert user is not None
            first.access.set_user(changed_user(user, [line.removeprefix("rule ").encode()]))
            continue
        reply = client.call(line)
        denied = isinstance(reply, Error) and reply.text.startswith("NOPERM")
        inside = isinstance(reply, list) and any(
            isinstance(one, Error) and one.text.startswith("NOPERM") for one in reply
        )
        if inside:
            return  # the same transaction cannot be run without these requests
        if not denied:
            other.call(line)
        elif client.queue is not None:
            assert client.call("EXEC") == Error(
                "EXECABORT Transaction discarded because of previous errors."
            )
            other.call("DISCARD")
    for place, player in ((first, client), (second, other)):
        if player.queue is not None:
            assert player.call("DISCARD") == Simple("OK")
        place.server.settle()
    assert first.state() == second.state()


def test_users_has_no_secret_default() -> None:
    assert not Users().new(b"u").accepts(b"")

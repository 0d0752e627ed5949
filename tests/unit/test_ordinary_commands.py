"""The commands every client sends besides the streams', called as the executor calls them, with a
process that is a few lines. Words of refusals are those of Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.commands.admin.client_line import TYPES, client_line
from millstream.commands.runtime.arguments import OwnedArgs
from millstream.commands.runtime.context import Context, Session
from millstream.commands.runtime.effects import Effects, apply_effects
from millstream.commands.runtime.replies import NO_REPLY, OK, Simple
from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS
from millstream.errors import CommandError
from millstream.server.backup.backup_feed import BackupFeed
from millstream.server.config.directives import DIRECTIVES, Config, changed_values
from millstream.server.execution.access import Access
from millstream.server.execution.audit import Audit
from millstream.server.execution.pubsub import PubSub
from millstream.server.protocol.resp import encode_reply
from millstream.server.replication.feed import Feed
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

NOW_MS = 1_700_000_000_123
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"

load_table()


class Client(Session):
    """A session with the buffers of a connection."""

    query_buffer_bytes = query_buffer_free_bytes = 0
    output_bytes = 0
    file_number = 7
    total_bytes_in = total_bytes_out = total_commands = 0


class Clients(dict[int, Any]):
    """The connected clients; notes the calls that affect them."""

    def __init__(self, asked: list[Any]) -> None:
        super().__init__()
        self._asked = asked

    def monitor(self, client: Any) -> None:
        client.monitoring = True

    def end_monitor(self, client: Any) -> None:
        client.monitoring = False

    def pause(self, until_ms: int, writes_only: bool) -> None:
        self._asked.append(("pause", until_ms, writes_only))

    def unblock(self, client: Any, error: bool) -> bool:
        self._asked.append(("unblock", client.id, error))
        return bool(client.blocked)

    def kill(self, client: Any) -> None:
        self._asked.append(("kill", client.id))


@dataclass
class Process:
    """The server of the commands under test: remembers its requests."""

    config: Config = field(default_factory=Config)
    asked: list[Any] = field(default_factory=list)
    last_save_s: int = 1_600_000_000
    save_fails: bool = False

    def __post_init__(self) -> None:
        self.replication = SimpleNamespace(
            is_replica=False, publish=lambda channel, message: None, primary_clients=list
        )
        machine: Any = SimpleNamespace(
            current=None,
            context=SimpleNamespace(now_ms=NOW_MS, steady_ms=NOW_MS),
            admission=SimpleNamespace(set_restricted=bool, set_password_required=bool),
            audit=Audit(),
        )
        self.clients = Clients(self.asked)
        self.access = Access(machine, self.clients, self.clients.kill)
        self.info = SimpleNamespace(text=lambda sections: f"# {' '.join(sections)}\r\n")
        self.settings = self.snapshots = self.shutdown = self
        self.pubsub = PubSub(lambda client, data: self.asked.append((client.id, data)))

    def now_us(self) -> int:
        return NOW_MS * 1000 + 45

    def push(self, client: Any, message: object) -> None:
        self.asked.append((client.id, message))

    def set(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        for name, value in changed_values(self.config, pairs).items():
            DIRECTIVES[name].set_in(self.config, value)

    def reset_stats(self) -> None:
        self.asked.append("reset_stats")

    def save(self) -> None:
        self.asked.append("save")

    def bgsave(self, schedule: bool) -> str:
        return f"Background saving {'scheduled' if schedule else 'started'}"

    def rewrite(self) -> str:
        return "Background append only file rewriting started"

    def wait_for_replicas(self, save: bool | None, is_forced: bool, client_id: int) -> bool:
        return False

    def save_and_stop(self, save: bool | None, is_forced: bool) -> None:
        if self.save_fails and save:
            if not is_forced:
                raise CommandError("ERR Errors trying to SHUTDOWN. Check logs.")
            save = False
        self.asked.append(("shutdown", save))

    def abort(self) -> None:
        raise CommandError("ERR No shutdown in progress.")


class Room:
    """One client in front of an empty keyspace."""

    def __init__(self) -> None:
        self.keyspace = Keyspace()
        self.effects = Effects()
        self.process = Process()
        self.ctx = Context(self.keyspace, self.effects, self.process)  # type: ignore[arg-type]
        self.me = self.connect()
        self.ctx.session = self.me
        self.ctx.now_ms = self.ctx.steady_ms = NOW_MS

    def connect(self) -> Client:
        number = len(self.process.clients) + 1
        client = Client(number, f"127.0.0.1:{5000 + number}", "127.0.0.1:6455", NOW_MS - 90_000)
        self.process.access.log_in_default(client)
        self.process.clients[number] = client
        return client

    def call(self, *words: bytes | str | int) -> Any:
        request = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        row = COMMANDS[request[0].lower()]
        args = OwnedArgs(request)
        sub = row.subcommands.get(request[1].lower()) if len(request) > 1 else None
        if sub is not None:
            row, args.pos = sub, 2
        self.ctx.db = self.keyspace.databases[self.me.db_index]
        return row.handler(self.ctx, args)

    def refusal(self, *words: bytes | str | int) -> str:
        with pytest.raises(CommandError) as refused:
            self.call(*words)
        return refused.value.message

    def add_stream(self, key: bytes) -> None:
        stream = Stream()
        stream.append_entry(1, 1, [b"f", b"v"])
        self.keyspace.databases[self.me.db_index].set(key, stream)

    def replayed(self) -> Keyspace:
        """A keyspace made of nothing but the effects recorded so far."""
        copy = Keyspace()
        apply_effects(copy, self.effects.take_payload())
        return copy


def contents(keyspace: Keyspace) -> dict[tuple[int, bytes], Any]:
    return {(db.index, key): db.get(key) for db in keyspace.databases for key in db.keys()}  # noqa: SIM118


@pytest.fixture
def room() -> Room:
    return Room()


# Greeting and password


def test_ping_and_echo(room: Room) -> None:
    assert room.call("PING") == b"PONG"
    assert room.call("PING", "hi") == b"hi"
    assert room.refusal("PING", "a", "b") == "ERR wrong number of arguments for 'ping' command"
    assert room.call("ECHO", b"\x00\r\n") == b"\x00\r\n"


def test_hello_has_the_fields_that_clients_check(room: Room) -> None:
    reply = room.call("HELLO", 3, "SETNAME", "me")
    assert list(reply) == [b"server", b"version", b"proto", b"id", b"mode", b"role", b"modules"]
    assert reply[b"server"] == b"millstream"
    assert reply[b"version"].startswith(b"8.10.")
    assert (reply[b"proto"], reply[b"id"]) == (3, 1)
    assert (room.me.resp, room.me.name) == (3, b"me")
    assert room.call("HELLO")[b"proto"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("4",), "NOPROTO unsupported protocol version"),
        (("abc",), "ERR Protocol version is not an integer or out of range"),
        (("3", "FOO"), "ERR Syntax error in HELLO option 'FOO'"),
        (("3", "SETNAME"), "ERR Syntax error in HELLO option 'SETNAME'"),
        (("3", "AUTH", "default"), "ERR Syntax error in HELLO option 'AUTH'"),
        (
            ("3", "SETNAME", "a b"),
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ),
        (
            ("3", "AUTH", "someone", "x"),
            "WRONGPASS invalid username-password pair or user is disabled.",
        ),
    ],
)
def test_hello_refuses_and_changes_nothing(
    room: Room, words: tuple[str, ...], message: str
) -> None:
    assert room.refusal("HELLO", *words) == message
    assert (room.me.resp, room.me.name) == (2, b"")


def test_a_password_is_required(room: Room) -> None:
    room.process.access.set_default_password("secret")
    room.me.authenticated = False
    assert room.refusal("HELLO", "3").startswith("NOAUTH HELLO must be called with")
    wrong = "WRONGPASS invalid username-password pair or user is disabled."
    assert room.refusal("AUTH", "guess") == wrong
    assert room.refusal("AUTH", "someone", "secret") == wrong
    assert not room.me.authenticated
    assert room.call("AUTH", "secret") == OK
    assert room.me.authenticated
    room.me.authenticated = False
    assert room.call("HELLO", "2", "AUTH", "default", "secret")[b"proto"] == 2
    assert room.me.authenticated


def test_auth_without_any_password(room: Room) -> None:
    assert room.refusal("AUTH", "x").startswith("ERR AUTH <password> called without any password")
    assert room.call("AUTH", "default", "anything") == OK
    assert room.refusal("AUTH", "a", "b", "c") == "ERR syntax error"


def test_select(room: Room) -> None:
    assert room.call("SELECT", 15) == OK
    assert room.me.db_index == 15
    assert room.refusal("SELECT", 16) == "ERR DB index is out of range"
    assert room.refusal("SELECT", -1) == "ERR DB index is out of range"
    assert room.refusal("SELECT", "x") == "ERR value is not an integer or out of range"


def test_reset_restores_the_initial_state(room: Room) -> None:
    room.process.access.set_default_password("secret")
    for words in (("SELECT", 3), ("HELLO", 3, "SETNAME", "me"), ("CLIENT", "NO-EVICT", "ON")):
        room.call(*words)
    room.call("CLIENT", "SETINFO", "lib-name", "lib")
    room.call("SUBSCRIBE", "news")
    room.call("PSUBSCRIBE", "n*")
    room.call("MONITOR")
    room.call("MULTI")
    room.call("CLIENT", "REPLY", "OFF")
    assert room.call("RESET") == b"RESET"
    me = room.me
    assert (me.db_index, me.resp, me.name, me.no_evict) == (0, 2, b"", False)
    assert not me.authenticated
    assert (me.queue, me.channels, me.patterns, me.monitoring) == (None, {}, {}, False)
    assert (me.reply_mode, room.process.pubsub.listeners_of(b"news")) == ("on", 0)
    assert me.lib_name == b"lib"


def test_quit_answers_and_closes(room: Room) -> None:
    assert room.call("QUIT") == OK
    assert room.me.close_after_reply


# CLIENT


def test_client_names(room: Room) -> None:
    assert room.call("CLIENT", "GETNAME") is None
    assert room.call("CLIENT", "SETNAME", "me") == OK
    assert room.call("CLIENT", "GETNAME") == b"me"
    assert room.refusal("CLIENT", "SETNAME", "a\nb").startswith("ERR Client names cannot")
    assert room.call("CLIENT", "SETNAME", "") == OK
    assert room.call("CLIENT", "GETNAME") is None


def test_client_info_has_the_fields_of_redis_in_their_order(room: Room) -> None:
    room.me.last_command = "client|info"
    room.call("CLIENT", "SETINFO", "LIB-VER", "1.2")
    text = room.call("CLIENT", "INFO").decode()
    fields = dict(pair.split("=") for pair in text.rstrip("\n").split(" "))
    assert " ".join(fields) == (
        "id addr laddr fd name age idle flags db sub psub ssub multi watch qbuf qbuf-free argv-mem "
        "multi-mem rbs rbp obl oll omem tot-mem events cmd user redir resp lib-name lib-ver "
        "io-thread tot-net-in tot-net-out tot-cmds"
    )
    assert fields["addr"] == "127.0.0.1:5001"
    assert (fields["age"], fields["flags"], fields["lib-ver"]) == ("90", "N", "1.2")


def test_client_list_chooses(room: Room) -> None:
    room.connect().blocked = True
    room.connect()
    lines = room.call("CLIENT", "LIST").decode().splitlines()
    assert [line.split()[0] for line in lines] == ["id=1", "id=2", "id=3"]
    assert "flags=b" in lines[1]
    assert room.call("CLIENT", "LIST", "ID", 3, 99) == (lines[2] + "\n").encode()
    assert room.call("CLIENT", "LIST", "TYPE", "pubsub") == b""
    assert room.call("CLIENT", "LIST", "TYPE", "normal").count(b"\n") == 3
    assert room.refusal("CLIENT", "LIST", "TYPE", "x") == "ERR Unknown client type 'x'"
    assert room.refusal("CLIENT", "LIST", "ID", "x") == "ERR Invalid client ID"
    assert room.refusal("CLIENT", "LIST", "FOO") == "ERR syntax error"


def test_client_kill_spares_the_caller_by_default(room: Room) -> None:
    room.connect()
    assert room.call("CLIENT", "KILL", "TYPE", "normal") == 1
    assert room.process.asked == [("kill", 2)]
    assert not room.me.close_after_reply
    assert room.call("CLIENT", "KILL", "ID", 1, "SKIPME", "no") == 1
    assert room.me.close_after_reply


def test_client_kill_matches_all_options(room: Room) -> None:
    room.connect()
    assert room.call("CLIENT", "KILL", "ID", 2, "ADDR", "127.0.0.1:5001") == 0
    assert room.call("CLIENT", "KILL", "ID", 2, "LADDR", "127.0.0.1:6455", "USER", "default") == 1
    assert room.call("CLIENT", "KILL", "MAXAGE", 91) == 0
    assert room.call("CLIENT", "KILL", "MAXAGE", 90) == 1
    assert room.call("CLIENT", "KILL", "127.0.0.1:5002") == OK


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("1.2.3.4:5",), "ERR No such client"),
        (("ID", "x"), "ERR client-id should be greater than 0"),
        (("ID", "0"), "ERR client-id should be greater than 0"),
        (("FOO", "x"), "ERR syntax error"),
        (("TYPE", "x"), "ERR Unknown client type 'x'"),
        (("USER", "x"), "ERR No such user 'x'"),
        (("SKIPME", "x"), "ERR syntax error"),
        (("ID", "1", "ADDR"), "ERR syntax error"),
    ],
)
def test_client_kill_refuses(room: Room, words: tuple[str, ...], message: str) -> None:
    assert room.refusal("CLIENT", "KILL", *words) == message


def test_client_reply_skip_does_not_end_off(room: Room) -> None:
    modes = []
    for word in ("SKIP", "ON", "OFF", "SKIP", "ON"):
        assert room.call("CLIENT", "REPLY", word) == (OK if word == "ON" else NO_REPLY)
        modes.append(room.me.reply_mode)
    assert modes == ["skip", "on", "off", "off", "on"]
    assert room.refusal("CLIENT", "REPLY", "x") == "ERR syntax error"


def test_subscription_replies_are_messages_while_replies_are_off(room: Room) -> None:
    messages = [[b"subscribe", b"a", 1], [b"subscribe", b"b", 2]]
    wanted = b"".join(encode_reply(message, 2) for message in messages)
    assert encode_reply(room.call("SUBSCRIBE", "a", "b"), 2) == wanted
    room.call("CLIENT", "REPLY", "OFF")
    assert room.call("UNSUBSCRIBE") == NO_REPLY
    assert room.process.asked == [(1, [b"unsubscribe", b"a", 1]), (1, [b"unsubscribe", b"b", 0])]


def test_client_pause_stores_the_time_of_its_end(room: Room) -> None:
    assert room.call("CLIENT", "PAUSE", 100) == OK
    assert room.call("CLIENT", "PAUSE", 0, "write") == OK
    assert room.process.asked == [("pause", NOW_MS + 100, False), ("pause", NOW_MS, True)]
    too_long = room.refusal("CLIENT", "PAUSE", 2**63 - 1)
    assert too_long == "ERR timeout is out of range"


def test_client_unblock(room: Room) -> None:
    room.connect().blocked = True
    assert room.call("CLIENT", "UNBLOCK", 2) == 1
    assert room.call("CLIENT", "UNBLOCK", 2, "timeout") == 1
    assert room.call("CLIENT", "UNBLOCK", 1, "ERROR") == 0
    assert room.call("CLIENT", "UNBLOCK", 99) == 0
    assert room.process.asked == [
        ("unblock", 2, False), ("unblock", 2, False), ("unblock", 1, True),
    ]  # fmt: skip


def test_client_setinfo(room: Room) -> None:
    assert room.refusal("CLIENT", "SETINFO", "FOO", "x") == "ERR Unrecognized option 'FOO'"
    assert room.refusal("CLIENT", "SETINFO", "LIB-NAME", "a b") == (
        "ERR lib-name cannot contain spaces, newlines or special characters."
    )


def test_missing_subcommands_are_refused(room: Room) -> None:
    assert room.refusal("CLIENT", "MAINT_NOTIFICATIONS", "ON") == (
        "ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."
    )
    assert room.refusal("CONFIG", "foo") == "ERR unknown subcommand 'foo'. Try CONFIG HELP."
    assert room.refusal("CLIENT") == "ERR wrong number of arguments for 'client' command"


def test_help_lists_the_subcommands(room: Room) -> None:
    lines = room.call("CLIENT", "HELP")
    assert lines[0] == (b"CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:")
    assert b"SETNAME connection-name" in lines
    assert lines[-2:] == [b"HELP", b"    Prints this help."]


def test_a_name_cannot_break_a_line_of_client_list(room: Room) -> None:
    for wrong in (b"a b", b"a\r\n", b"\xff", b"\x7f"):
        assert room.refusal("CLIENT", "SETNAME", wrong).startswith("ERR Client names cannot")
    assert "\n" not in client_line(room.me, NOW_MS)


@pytest.mark.parametrize(("feed_class", "flags"), [(Feed, "S"), (BackupFeed, "N")])
def test_a_client_that_gets_a_backup_is_no_replica(
    room: Room, feed_class: type, flags: str
) -> None:
    room.me.feed = feed_class.__new__(feed_class)
    assert f" flags={flags} " in client_line(room.me, NOW_MS)
    assert TYPES[b"replica"](room.me) == (flags == "S")
    assert TYPES[b"normal"](room.me) == (flags == "N")


# Strings


def test_set_and_get(room: Room) -> None:
    assert room.call("GET", "k") is None
    assert room.call("SET", "k", b"\x00v") == OK
    assert room.call("GET", "k") == b"\x00v"
    assert contents(room.replayed()) == {(0, b"k"): b"\x00v"}


def test_set_conditions(room: Room) -> None:
    assert room.call("SET", "k", "1", "XX") is None
    assert room.call("SET", "k", "1", "nx") == OK
    assert room.call("SET", "k", "2", "NX") is None
    assert room.call("SET", "k", "2", "NX", "GET") == b"1"
    assert room.call("SET", "k", "3", "XX", "GET") == b"1"
    assert room.call("SET", "new", "x", "GET") is None
    assert room.call("GET", "k") == b"3"
    assert contents(room.replayed()) == {(0, b"k"): b"3", (0, b"new"): b"x"}


@pytest.mark.parametrize("options", [("NX", "XX"), ("FOO",), ("EX",), ("GET", "x")])
def test_set_refuses_unknown_options(room: Room, options: tuple[str, ...]) -> None:
    assert room.refusal("SET", "k", "v", *options) == "ERR syntax error"
    assert room.call("GET", "k") is None


def test_a_stream_is_no_string(room: Room) -> None:
    room.add_stream(b"s")
    assert room.refusal("GET", "s") == WRONG_TYPE
    assert room.refusal("SET", "s", "v", "GET") == WRONG_TYPE
    assert room.call("TYPE", "s") == b"stream"
    assert room.call("SET", "s", "v") == OK
    assert room.call("TYPE", "s") == b"string"


# Keys


def test_del_counts_and_records_existing_keys(room: Room) -> None:
    for key in ("a", "b", "c"):
        room.call("SET", key, "1")
    changes = room.keyspace.dirty
    assert room.call("DEL", "a", "nosuch", "a") == 1
    assert room.call("UNLINK", "b") == 1
    assert room.keyspace.dirty == changes + 2
    assert contents(room.replayed()) == {(0, b"c"): b"1"}


def test_a_command_without_a_change_records_nothing(room: Room) -> None:
    for words in (("DEL", "a"), ("GET", "a"), ("SET", "a", "1", "XX"), ("EXISTS", "a")):
        room.call(*words)
    assert room.effects.take_payload() == b""
    assert room.keyspace.dirty == 0


def test_exists_and_type(room: Room) -> None:
    room.call("SET", "a", "1")
    assert room.call("EXISTS", "a", "a", "b") == 2
    assert room.call("TYPE", "a") == b"string"
    assert room.call("TYPE", "b") == b"none"


def test_databases_are_apart(room: Room) -> None:
    room.call("SET", "a", "0")
    room.call("SELECT", 5)
    assert room.call("GET", "a") is None
    room.call("SET", "a", "5")
    assert room.call("DBSIZE") == 1
    assert contents(room.replayed()) == {(0, b"a"): b"0", (5, b"a"): b"5"}


def test_a_scan_examines_ten_thousand_keys_a_call(room: Room) -> None:
    for number in range(25_000):
        room.keyspace.databases[0].set(b"key:%d" % number, b"1")
    sizes, cursor = [], b"0"
    while True:
        cursor, keys = room.call("SCAN", cursor, "COUNT", 10_000_000)
        sizes.append(len(keys))
        if cursor == b"0":
            break
    assert sum(sizes) == 25_000
    assert len(sizes) == 3
    assert max(sizes) < 10_100


def test_keys_and_scan_find_the_same(room: Room) -> None:
    names = {f"key:{number}".encode() for number in range(100)}
    for name in names:
        room.call("SET", name, "1")
    room.add_stream(b"stream:1")
    assert set(room.call("KEYS", "key:*")) == names
    assert room.call("KEYS", "*:1?0") == []
    found, cursor = [], b"0"
    while True:
        cursor, keys = room.call("SCAN", cursor, "MATCH", "key:*", "COUNT", 7)
        found += keys
        if cursor == b"0":
            break
    assert set(found) == names
    assert room.call("SCAN", 0, "COUNT", 2**62)[0] == b"0"
    assert room.call("SCAN", 0, "TYPE", "stream", "COUNT", 1000) == [b"0", [b"stream:1"]]
    assert room.call("SCAN", 0, "TYPE", "list", "COUNT", 1000) == [b"0", []]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("x",), "ERR invalid cursor"),
        (("-1",), "ERR invalid cursor"),
        ((str(2**64),), "ERR invalid cursor"),
        (("0", "COUNT", "0"), "ERR syntax error"),
        (("0", "COUNT", "x"), "ERR value is not an integer or out of range"),
        (("0", "MATCH"), "ERR syntax error"),
        (("0", "FOO", "x"), "ERR syntax error"),
    ],
)
def test_scan_refuses(room: Room, words: tuple[str, ...], message: str) -> None:
    assert room.refusal("SCAN", *words) == message


def test_flushdb_empties_one_database_and_flushall_all(room: Room) -> None:
    room.call("SET", "a", "1")
    room.call("SELECT", 1)
    room.call("SET", "b", "1")
    assert room.call("FLUSHDB", "ASYNC") == OK
    assert contents(room.keyspace) == {(0, b"a"): b"1"}
    assert room.call("FLUSHALL", "sync") == OK
    assert contents(room.keyspace) == {}
    assert contents(room.replayed()) == {}


@pytest.mark.parametrize("words", [("FOO",), ("ASYNC", "SYNC")])
def test_an_invalid_flush_deletes_no_key(room: Room, words: tuple[str, ...]) -> None:
    room.call("SET", "a", "1")
    assert room.refusal("FLUSHALL", *words) == "ERR syntax error"
    assert room.call("DBSIZE") == 1


# The server


def test_time_comes_from_the_server(room: Room) -> None:
    reply = encode_reply(room.call("TIME"), 2)
    assert reply == b"*2\r\n$10\r\n1700000000\r\n$6\r\n123045\r\n"


def test_config(room: Room) -> None:
    assert room.call("CONFIG", "GET", "appendo*", "appendfs*") == {
        b"appendonly": b"yes",
        b"appendfsync": b"always",
        b"appendfsync-groups": b"always",
    }
    assert room.call("CONFIG", "SET", "timeout", "5", "maxclients", "7") == OK
    assert room.call("CONFIG", "GET", "timeout", "maxclients") == {
        b"timeout": b"5",
        b"maxclients": b"7",
    }
    assert room.refusal("CONFIG", "SET", "a", "b", "c") == "ERR syntax error"
    assert room.call("CONFIG", "RESETSTAT") == OK
    assert room.process.asked == ["reset_stats"]


def test_config_set_sets_all_values_or_none(room: Room) -> None:
    assert "argument must be" in room.refusal("CONFIG", "SET", "timeout", "5", "maxclients", "-7")
    assert room.call("CONFIG", "GET", "timeout") == {b"timeout": b"0"}


def test_saving(room: Room) -> None:
    assert room.call("SAVE") == OK
    assert room.call("BGSAVE") == b"Background saving started"
    assert room.call("BGSAVE", "SCHEDULE") == b"Background saving scheduled"
    assert room.refusal("BGSAVE", "FOO") == "ERR syntax error"
    assert room.call("BGREWRITEAOF") == b"Background append only file rewriting started"
    assert room.call("LASTSAVE") == 1_600_000_000


@pytest.mark.parametrize(
    ("words", "save"), [((), None), (("NOSAVE", "NOW"), False), (("SAVE", "FORCE"), True)]
)
def test_shutdown(room: Room, words: tuple[str, ...], save: bool | None) -> None:
    assert room.call("SHUTDOWN", *words) is NO_REPLY
    assert room.process.asked == [("shutdown", save)]


def test_shutdown_stays_when_saving_fails_unless_forced(room: Room) -> None:
    room.process.save_fails = True
    assert room.refusal("SHUTDOWN", "SAVE") == "ERR Errors trying to SHUTDOWN. Check logs."
    assert room.process.asked == []
    assert room.call("SHUTDOWN", "SAVE", "FORCE") is NO_REPLY
    assert room.process.asked == [("shutdown", False)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("FOO",), "ERR syntax error"),
        (("SAVE", "NOSAVE"), "ERR syntax error"),
        (("ABORT", "NOW"), "ERR syntax error"),
        (("ABORT",), "ERR No shutdown in progress."),
    ],
)
def test_shutdown_refuses(room: Room, words: tuple[str, ...], message: str) -> None:
    assert room.refusal("SHUTDOWN", *words) == message


def test_memory_usage(room: Room) -> None:
    assert room.call("MEMORY", "USAGE", "k") is None
    room.call("SET", "k", "v" * 1000)
    room.add_stream(b"s")
    assert room.call("MEMORY", "USAGE", "k", "SAMPLES", 0) > 1000
    assert room.call("MEMORY", "USAGE", "s") > 0
    assert room.refusal("MEMORY", "USAGE", "k", "SAMPLES") == "ERR syntax error"
    assert room.refusal("MEMORY", "USAGE", "k", "SAMPLES", "-1") == "ERR syntax error"
    assert room.refusal("MEMORY", "USAGE", "k", "FOO", "1") == "ERR syntax error"


# COMMAND


def test_command_count_and_list(room: Room) -> None:
    names = room.call("COMMAND", "LIST")
    assert room.call("COMMAND", "COUNT") == len(room.call("COMMAND"))
    assert room.call("COMMAND", "COUNT") == sum(b"|" not in name for name in names)
    assert b"client|list" in names
    assert b"tappend" in names
    listed = room.call("COMMAND", "LIST", "FILTERBY", "PATTERN", "CLIENT|no-*")
    assert set(listed) == {b"client|no-evict", b"client|no-touch"}
    assert b"get" in room.call("COMMAND", "LIST", "FILTERBY", "ACLCAT", "string")
    assert room.call("COMMAND", "LIST", "FILTERBY", "MODULE", "x") == []
    assert room.refusal("COMMAND", "LIST", "FOO") == "ERR syntax error"


def test_command_info_has_the_shape_of_redis(room: Room) -> None:
    absent, get = room.call("COMMAND", "INFO", "nosuch", "GET")
    assert absent is None
    assert get[:2] == [b"get", 2]
    assert get[2] == {b"readonly", b"fast"}
    assert get[3:6] == [1, 1, 1]
    assert get[6] == {b"@read", b"@string", b"@fast"}
    assert get[7:] == [
        [],
        [
            {
                b"flags": {b"RO", b"access"},
                b"begin_search": {b"type": b"index", b"spec": {b"index": 1}},
                b"find_keys": {
                    b"type": b"range",
                    b"spec": {b"lastkey": 0, b"keystep": 1, b"limit": 0},
                },
            }
        ],
        [],
    ]


def test_command_info_nests_subcommands(room: Room) -> None:
    (config,) = room.call("COMMAND", "INFO", "config")
    assert config[1] == -2
    assert {sub[0] for sub in config[9]} == {
        b"config|get", b"config|set", b"config|resetstat", b"config|rewrite", b"config|help",
    }  # fmt: skip
    (sub,) = room.call("COMMAND", "INFO", "config|get")
    assert sub[:2] == [b"config|get", -3]


def test_command_info_has_the_keys_of_an_option(room: Room) -> None:
    (tseal,) = room.call("COMMAND", "INFO", "tseal")
    assert tseal[2] == {Simple(b"write"), Simple(b"movablekeys")}
    assert tseal[3:6] == [1, 1, 1]
    _, children = tseal[8]
    assert children[b"flags"] == {Simple(b"RW"), Simple(b"update")}
    assert children[b"begin_search"] == {
        b"type": b"keyword",
        b"spec": {b"keyword": b"CHILDREN", b"startfrom": 2},
    }
    assert children[b"find_keys"][b"spec"] == {b"lastkey": -1, b"keystep": 1, b"limit": 0}
    arguments = room.call("COMMAND", "DOCS", "tseal")[b"tseal"][b"arguments"]
    assert [one.get(b"key_spec_index") for one in arguments] == [0, None, 1]


def test_the_use_of_the_key_of_tread_depends_on_its_options(room: Room) -> None:
    (tread,) = room.call("COMMAND", "INFO", "tread")
    ((flags, *_),) = [list(spec.values()) for spec in tread[8]]
    uses = [Simple(b"RW"), Simple(b"access"), Simple(b"update")]
    assert flags == {*uses, Simple(b"variable_flags")}
    for options, found in (("GROUP g 0", uses), ("BLOCK 1", [Simple(b"RO"), Simple(b"access")])):
        line = f"TREAD k 0 1 {options}"
        assert room.call("COMMAND", "GETKEYSANDFLAGS", *line.split()) == [[b"k", {*found}]]


def test_command_docs_describe_arguments(room: Room) -> None:
    docs = room.call("COMMAND", "DOCS", "nosuch", "set", "client|setname")
    assert list(docs) == [b"set", b"client|setname"]
    arguments = docs[b"set"][b"arguments"]
    assert [argument[b"name"] for argument in arguments[:2]] == [b"key", b"value"]
    assert arguments[2][b"type"] == b"oneof"
    assert arguments[2][b"flags"] == {b"optional"}
    assert room.call("COMMAND", "DOCS").keys() == {row.name.encode() for row in COMMANDS.values()}


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("DEL", "a", "b"), [b"a", b"b"]),
        (("SET", "a", "b"), [b"a"]),
        (("MEMORY", "USAGE", "k"), [b"k"]),
        (("TSEAL", "k"), [b"k"]),
        (("TSEAL", "k", "CHILDREN", "a", "b"), [b"k", b"a", b"b"]),
        (("TSEAL", "children", "elsewhere", "children", "a"), [b"children", b"a"]),
    ],
)
def test_command_getkeys(room: Room, words: tuple[str, ...], keys: list[bytes]) -> None:
    assert room.call("COMMAND", "GETKEYS", *words) == keys


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nosuch", "a"), "ERR Invalid command specified"),
        (("PING", "a"), "ERR The command has no key arguments"),
        (("GET", "a", "b"), "ERR Invalid number of arguments specified for command"),
    ],
)
def test_command_getkeys_refuses(room: Room, words: tuple[str, ...], message: str) -> None:
    assert room.refusal("COMMAND", "GETKEYS", *words) == message

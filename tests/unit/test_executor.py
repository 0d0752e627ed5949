"""The executor and the outbox without sockets: turns, held replies, waits, and counters."""

from __future__ import annotations

from copy import copy
from types import SimpleNamespace

import pytest
from tests.sim.replay import effects_of
from tests.support.in_process import NOW_MS, InProcessClient, InProcessServer, Journal, Timer
from tests.support.resp import Error, Null, Simple

from millstream.commands.runtime.replies import BlockedRead, Wait
from millstream.commands.table.registry import COMMANDS
from millstream.server.execution import timers


class SlowJournal(Journal):
    """Nothing is durable until the test reports it."""

    def commit(self, payload: bytes) -> int:
        self.payloads.append(payload)
        self.last_seq = len(self.payloads)
        return self.last_seq


class ClosingPlayer(InProcessClient):
    """Notes the output that it had received when it was closed."""

    sent_at_end: bytes | None = None

    def end(self, after_reply: bool) -> int:
        if self.sent_at_end is None:
            self.sent_at_end = self.unread
        if not after_reply:
            self.in_process.executor.detach(self)
        return 0


def request(*words: str) -> bytes:
    parts = [f"*{len(words)}\r\n"] + [f"${len(word)}\r\n{word}\r\n" for word in words]
    return "".join(parts).encode()


@pytest.mark.parametrize("empty", [b"*0\r\n\r\n", b"\r\n", b"*0\r\n"])
def test_any_number_of_empty_requests_is_none(empty: bytes) -> None:
    data = b"PING\r\n" + empty * 300_000 + b"PING\r\n"
    in_process = InProcessServer()
    player = in_process.player()
    in_process.executor.feed(player, data)
    in_process.settle()
    assert player.unread == b"+PONG\r\n+PONG\r\n"


def test_an_empty_line_does_not_authenticate() -> None:
    in_process = InProcessServer()
    player = in_process.player()
    player.authenticated = False
    in_process.executor.feed(player, b"\r\n*1\r\n$100000000\r\n")
    in_process.settle()
    assert player.read() == Error("ERR Protocol error: unauthenticated bulk length")


def test_subcommands_of_a_container_are_distinguished() -> None:
    in_process = InProcessServer()
    player = in_process.player()
    lines = (
        "CLIENT SETNAME a\nclient getname\nCLIENT GETNAME\nCLIENT GETNAMES\nXINFO GETNAME s\nCLIENT"
    )
    data = b"".join(request(*line.split(" ")) for line in lines.split("\n"))
    in_process.executor.feed(player, data)
    in_process.settle()
    assert [player.read() for _ in range(3)] == [Simple("OK"), b"a", b"a"]
    for name in ("GETNAMES", "GETNAME"):
        error = player.read()
        assert isinstance(error, Error)
        assert error.text.startswith(f"ERR unknown subcommand '{name}'")
    assert player.read() == Error("ERR wrong number of arguments for 'client' command")


def closing(in_process: InProcessServer) -> ClosingPlayer:
    player = ClosingPlayer(in_process, 2)
    in_process.players.append(player)
    in_process.executor.attach(player)
    return player


def test_quit_closes_only_after_every_held_reply() -> None:
    journal = SlowJournal()
    in_process = InProcessServer(journal)
    player = closing(in_process)
    for words in (("TAPPEND", "s", "a", "1"), ("TAPPEND", "s", "a", "2"), ("QUIT",)):
        in_process.executor.feed(player, request(*words))
        in_process.settle()
    assert player.unread == b""
    for sequence in range(1, journal.last_seq + 1):
        journal.durable_seq = sequence
        in_process.executor.outbox.durable(sequence)
    assert player.sent_at_end is not None
    assert player.sent_at_end.count(b"$15") == 2
    assert player.sent_at_end.endswith(b"+OK\r\n")


PONG = b"+PONG\r\n"


def behind_a_write(in_process: InProcessServer) -> InProcessClient:
    """A client next to one whose write is not durable yet."""
    writer, other = in_process.player(), in_process.player()
    writer.send("XADD s 1-1 a 1")
    assert writer.unread == b""
    return other


SHOW_NO_DATA = [
    "PING", "ECHO PONG", "TIME", "SELECT 1", "CLIENT ID", "HELLO 3", "INFO", "INFO persistence",
    "CLIENT LIST", "CLIENT INFO", "CLIENT KILL ID 999", "CONFIG GET *", "COMMAND COUNT",
    "COMMAND DOCS ping",
]  # fmt: skip


@pytest.mark.parametrize("line", SHOW_NO_DATA)
def test_replies_without_data_do_not_wait_for_the_journal(line: str) -> None:
    other = behind_a_write(InProcessServer(SlowJournal()))
    other.send(line)
    assert other.unread != b""


@pytest.mark.parametrize(
    "line",
    ["EXISTS s", "XLEN s", "XADD s 1-1 a 1", "INCR s", "DBSIZE", "OBJECT FREQ s", "EXEC"],
)
def test_data_and_its_errors_wait_for_the_journal(line: str) -> None:
    in_process = InProcessServer(SlowJournal())
    other = behind_a_write(in_process)
    if line == "EXEC":
        other.send("MULTI")
        other.send("PING")
        other.unread = b""
    other.send(line)
    assert other.unread == b""
    in_process.executor.outbox.durable(1)
    assert other.unread != b""


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("before", "answer"),
    [
        ("XLEN s", b":1\r\n"),
        ("INCR s", b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
        ("XADD s 1-2 a 1", b"$3\r\n1-2\r\n"),
    ],
)
def test_a_ping_waits_for_earlier_requests_of_its_own_client(
    at_once: bool, before: str, answer: bytes
) -> None:
    in_process = InProcessServer(SlowJournal())
    other = behind_a_write(in_process)
    if at_once:
        in_process.executor.feed(other, request(*before.split()) + request("PING"))
        in_process.settle()
    else:
        other.send(before)
        other.send("PING")
    assert other.unread == b""
    in_process.executor.outbox.durable(in_process.persistence.commits.last_seq)
    assert other.unread == answer + PONG


def test_a_ping_waits_for_a_write_without_reply() -> None:
    in_process = InProcessServer(SlowJournal())
    player = in_process.player()
    player.send("CLIENT REPLY SKIP")
    player.send("XADD s 1-1 a 1")
    player.send("PING")
    assert player.unread == b""
    in_process.executor.outbox.durable(1)
    assert player.unread == PONG


def test_a_ping_waits_for_a_served_read_without_reply() -> None:
    in_process = InProcessServer(SlowJournal())
    reader = in_process.player()
    reader.send("CLIENT REPLY SKIP")
    reader.send('TREAD s "" 1 BLOCK 0 GROUP g 0')
    behind_a_write(in_process)
    reader.send("PING")
    assert reader.unread == b""
    in_process.executor.outbox.durable(in_process.persistence.commits.last_seq)
    assert reader.unread == PONG


def test_a_ping_waits_for_a_waiting_message() -> None:
    in_process = InProcessServer(SlowJournal())
    listener = behind_a_write(in_process)
    in_process.executor.push_encoded(listener, b"+news\r\n")
    listener.send("PING")
    assert listener.unread == b""
    in_process.executor.outbox.durable(1)
    assert listener.unread == b"+news\r\n" + PONG


def test_a_failed_journal_closes_clients_with_pending_replies() -> None:
    journal = SlowJournal()
    in_process = InProcessServer(journal)
    writer, reader, silent, pinging = (closing(in_process) for _ in range(4))
    in_process.executor.feed(silent, request("CLIENT", "REPLY", "SKIP"))
    for player, words in (
        (writer, ["XADD", "s", "1-1", "a", "1"]),
        (silent, ["XADD", "s", "1-2", "a", "1"]),
        (reader, ["XLEN", "s"]),
        (pinging, ["PING"]),
    ):
        in_process.executor.feed(player, request(*words))
    assert journal.last_seq == 0, "the tick has not ended"
    in_process.executor.journal_failed()
    journal.durable_seq = 100  # nothing is held without a journal
    in_process.settle()
    assert [player.closed for player in (writer, reader, silent, pinging)] == [True] * 3 + [False]
    assert [player.unread for player in (writer, reader, silent)] == [b""] * 3
    assert pinging.unread == PONG


def test_a_journal_that_fails_closes_no_client_with_safe_replies() -> None:
    journal = SlowJournal()
    in_process = InProcessServer(journal)
    reader = closing(in_process)
    in_process.executor.feed(reader, request("XLEN", "s"))
    in_process.executor.journal_failed()
    in_process.settle()
    assert not reader.closed
    assert reader.unread == b":0\r\n"


def test_a_client_that_ends_the_journal_gets_no_earlier_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = SlowJournal()
    in_process = InProcessServer(journal)
    player = closing(in_process)

    def fail() -> int:
        """As CONFIG SET appendonly no does when the last sync fails."""
        journal.commit(b"")
        in_process.executor.journal_failed()
        journal.durable_seq = journal.last_seq
        return 0

    monkeypatch.setattr(in_process, "now_us", fail)
    in_process.executor.feed(player, request("XADD", "s", "1-1", "a", "1") + request("TIME"))
    in_process.settle()
    assert player.closed
    assert player.unread == b""


def test_a_closed_client_gets_no_output() -> None:
    in_process = InProcessServer()
    dead, alive = closing(in_process), closing(in_process)
    for player in (dead, alive):
        in_process.executor.feed(
            player, request("TREAD", "s", "", "1", "BLOCK", "0", "GROUP", "g", "0")
        )
        in_process.settle()
    dead.end(False)
    in_process.executor.feed(closing(in_process), request("TAPPEND", "s", "a", "1"))
    in_process.settle()
    assert dead.unread == b""
    assert b"$1\r\na\r\n$1\r\n1\r\n" in alive.unread


def test_a_served_wait_leaves_no_alarm() -> None:
    in_process = InProcessServer()
    reader, writer = closing(in_process), closing(in_process)
    for _ in range(1000):
        in_process.executor.feed(reader, request("TREAD", "s", "", "1", "BLOCK", "86400000"))
        in_process.executor.feed(writer, request("TAPPEND", "s", "a", "1"))
        in_process.settle()
    assert len(in_process.executor.timers) == 0
    assert len(in_process.executor.timers._heap) <= 2 * timers._SWEEP_MIN + 2


def test_a_subcommand_is_not_a_command() -> None:
    in_process = InProcessServer()
    player = closing(in_process)
    in_process.executor.feed(player, request("CLIENT", "ID") + request("CLIENT|ID", "x"))
    in_process.settle()
    assert b"-ERR unknown command 'CLIENT|ID'" in player.unread


def test_a_refused_call_counts_as_rejected_and_not_as_failed() -> None:
    in_process = InProcessServer()
    player = closing(in_process)
    in_process.executor.feed(player, request("TAPPEND", "s") + request("TACK", "s", "g", "x"))
    in_process.executor.feed(player, request("TRANGE", "s", "x", "+"))
    in_process.settle()
    stats = in_process.executor.table.stats()
    assert (stats["tappend"].rejected_calls, stats["tappend"].failed_calls) == (1, 0)
    assert (stats["trange"].rejected_calls, stats["trange"].failed_calls) == (0, 1)


def test_a_completion_is_timed_alone_only_if_it_releases_much() -> None:
    in_process = InProcessServer()
    noted: list[str] = []

    class Latency:
        def note(self, event: str, at_ms: int, took_ms: int) -> None:
            noted.append(event)

    in_process.latency = Latency()  # type: ignore[attr-defined]
    in_process.executor.set_slow(-1, 1)
    in_process.tick_per_look_ms = 1
    player = in_process.player()
    first, second = (player.call("TRESERVE s w") for _ in range(2))
    for _ in range(101):
        player.call("TAPPEND s f v")
    assert noted == []
    player.call(f"TCOMPLETE s w {first.decode()} f v")
    assert noted == []
    player.call(f"TCOMPLETE s w {second.decode()} f v")
    assert noted == ["fast-command"]
    player.call("TRESERVE s w COUNT 101")
    assert noted == ["fast-command"] * 2


@pytest.mark.parametrize(
    "line",
    ["XREAD BLOCK 0 STREAMS s s $ $", "XREADGROUP GROUP g c BLOCK 0 STREAMS s s > >"],
)
def test_a_read_that_names_a_key_twice_waits_once(line: str) -> None:
    in_process = InProcessServer()
    reader, writer = in_process.player(), in_process.player()
    writer.call("XGROUP CREATE s g $ MKSTREAM")
    reader.send(line)
    assert in_process.executor.blocked_count == 1
    writer.call("XADD s * f v")
    assert reader.read()
    assert in_process.executor.blocked_count == 0
    assert in_process.keyspace.databases[0].waiting == {}


class BrokenRead(BlockedRead):
    def attempt(self, ctx: object) -> object:
        raise RuntimeError("on purpose")


def test_a_fault_in_a_waiting_read_is_not_the_appenders(monkeypatch: pytest.MonkeyPatch) -> None:
    read = BrokenRead()
    read.keys = [(0, b"s")]
    command = copy(COMMANDS[b"dbsize"])
    command.handler = lambda ctx, args: Wait(read, 0)
    monkeypatch.setitem(COMMANDS, b"dbsize", command)
    in_process = InProcessServer()
    reader, writer = closing(in_process), closing(in_process)
    in_process.executor.feed(reader, request("DBSIZE"))
    in_process.settle()
    in_process.executor.feed(writer, request("TAPPEND", "s", "a", "1"))
    in_process.settle()
    assert writer.unread.startswith(b"$15\r\n")
    assert reader.unread == b"-ERR internal error, see the server's log\r\n"


def test_a_client_with_very_many_requests_yields_to_others() -> None:
    in_process = InProcessServer()
    busy, other = closing(in_process), closing(in_process)
    in_process.tick_per_look_ms = 1
    in_process.executor.feed(busy, request("PING") * 1000)
    in_process.executor.feed(other, request("PING"))
    in_process.executor.end_tick()
    assert other.unread == b"+PONG\r\n"
    assert 0 < busy.unread.count(b"+PONG") < 1000
    in_process.settle()
    assert busy.unread.count(b"+PONG") == 1000


@pytest.mark.parametrize("line", [b"POST / HTTP/1.1\r\n", b"Host: localhost:6455\r\n"])
def test_http_ends_the_connection_before_its_body_runs(line: bytes) -> None:
    in_process = InProcessServer()
    player = closing(in_process)
    in_process.executor.feed(player, line + b"\r\n" + request("SET", "k", "v"))
    in_process.settle()
    assert player.sent_at_end == b""
    assert in_process.keyspace.databases[0].get(b"k") is None


def test_requests_left_over_many_times_are_not_mixed_up() -> None:
    in_process = InProcessServer()
    player = closing(in_process)
    in_process.tick_per_look_ms = 1  # a turn ends after a few requests
    wanted = [f"value {number} {'x' * (number % 50)}" for number in range(2000)]
    data = b"".join(request("ECHO", value) for value in wanted)
    for start in range(0, len(data), 9973):
        in_process.executor.feed(player, data[start : start + 9973])
        in_process.executor.end_tick()
    in_process.settle()
    assert player.unread == b"".join(
        b"$%d\r\n%s\r\n" % (len(value), value.encode()) for value in wanted
    )


@pytest.mark.parametrize("line", [b"NOSUCH\r\n", b"GET\r\n", b"TIME\r\n", b"\r\n" * 40])
def test_a_clients_turn_ends_in_time_for_any_requests(line: bytes) -> None:
    """Refused and empty requests count like others; clients that wait for them get a turn."""
    in_process = InProcessServer()
    busy, other = in_process.player(), in_process.player()
    in_process.tick_per_look_ms = 1
    count = 2000
    in_process.executor.feed(busy, line * count)
    done = busy.unread.count(b"\r\n")
    in_process.executor.feed(other, request("PING"))
    in_process.executor.end_tick()
    assert other.unread == b"+PONG\r\n"
    assert busy.unread.count(b"\r\n") < count
    assert done < count
    in_process.loop.run()
    in_process.executor.feed(busy, request("PING"))
    in_process.settle()
    assert busy.unread.endswith(b"+PONG\r\n")


def test_new_requests_follow_those_that_are_left() -> None:
    in_process = InProcessServer()
    player = in_process.player()
    in_process.tick_per_look_ms = 1
    in_process.executor.feed(player, request("TIME") * 1000)
    before = in_process.executor.statistics.commands
    in_process.executor.feed(player, request("TIME") * 1000)
    assert in_process.executor.statistics.commands == before
    in_process.settle()
    assert in_process.executor.statistics.commands == 2000


def test_killing_a_blocked_client_leaves_the_killer_itself() -> None:
    in_process = InProcessServer()
    reader, killer = closing(in_process), closing(in_process)
    in_process.executor.feed(reader, request("XREAD", "BLOCK", "0", "STREAMS", "s", "$"))
    in_process.settle()
    running = []

    def detach_reader(ctx: object) -> None:
        in_process.executor.detach(reader)
        running.append(in_process.executor.context.session)

    in_process.executor.context.session = killer
    detach_reader(in_process.executor.context)
    assert running == [killer]


def test_a_transaction_may_not_grow_without_end() -> None:
    in_process = InProcessServer()
    player = closing(in_process)
    in_process.executor.limits.query_bytes = 10_000
    in_process.executor.feed(player, request("MULTI"))
    for _ in range(20):
        in_process.executor.feed(player, request("SET", "k", "x" * 1000))
    assert player.closed


def test_the_word_table_of_an_unfinished_request_counts() -> None:
    in_process = InProcessServer()
    player = closing(in_process)
    in_process.executor.limits.query_bytes = 10_000
    in_process.executor.feed(player, b"*1000000\r\n" + b"$0\r\n\r\n" * 200)
    assert player.sent_at_end is None
    assert player.query_buffer_free_bytes >= 200 * 16
    in_process.executor.feed(player, b"$0\r\n\r\n" * 200)
    assert player.sent_at_end == b""


def test_a_long_transaction_is_answered_in_slices() -> None:
    in_process = InProcessServer()
    sizes: list[int] = []

    class Counting(InProcessClient):
        def transmit(self, data: bytes) -> int:
            sizes.append(len(data))
            return super().transmit(data)

    player = Counting(in_process, 2)
    in_process.players.append(player)
    in_process.executor.attach(player)
    for number in range(1, 5001):
        player.call(f"XADD s {number}-0 field {'x' * 100}")
    sizes.clear()
    for line in ("MULTI", "XRANGE s - +", "PING", "XRANGE s - +", "XLEN s", "EXEC"):
        player.send(line)
    for _ in range(5):
        player.read()
    first, pong, second, length = player.read()
    assert len(first) == len(second) == 5000
    assert (pong, length) == (Simple("PONG"), 5000)
    assert max(sizes) < 600_000
    assert player.call("PING") == Simple("PONG")


def test_keys_expire_again_after_a_pause() -> None:
    in_process = InProcessServer()
    in_process.executor.pauses.start(in_process.wall_ms + 300, True)
    in_process.executor.recheck_limits()
    assert not in_process.keyspace.may_delete
    in_process.wait_ms(301)
    assert in_process.keyspace.may_delete


def test_groups_do_not_expire_during_a_pause() -> None:
    in_process = InProcessServer()
    player = in_process.player()
    player.call("TAPPEND s a 1")
    player.call("TREAD s 0 1 GROUP g 200 RETRY 1000 50")
    frames = len(in_process.persistence.payloads)
    in_process.executor.pauses.start(in_process.wall_ms + 1000, True)
    in_process.wait_ms(300)
    assert len(in_process.persistence.payloads) == frames
    assert in_process.group().pending.count == 1
    assert player.call("XINFO GROUPS s") == []
    in_process.wait_ms(701)
    in_process.wait_ms(1000)
    assert b"g" not in in_process.stream().groups


# ---------------------------------------------------------------- a slow disk


class StalledJournal(SlowJournal):
    """Every frame waits in the queue until the disk writes them all."""

    def __init__(self) -> None:
        super().__init__()
        self.in_process: InProcessServer

    @property
    def queued_bytes(self) -> int:  # type: ignore[override]
        return sum(map(len, self.payloads[self.durable_seq :]))

    def write_all(self) -> None:
        """The disk works again."""
        self.durable_seq = self.last_seq
        self.in_process.executor.outbox.durable(self.last_seq)
        self.in_process.executor.on_queue()
        self.in_process.settle()


def stalled(limit_bytes: int) -> tuple[StalledJournal, InProcessServer]:
    """A in_process whose disk does nothing, and whose queue is full."""
    journal = StalledJournal()
    in_process = journal.in_process = InProcessServer(journal)
    in_process.executor.limit_queue(limit_bytes)
    player = in_process.player()
    player.send(f"XADD s 1-1 n {'x' * limit_bytes}")
    assert in_process.executor.queue_full
    assert player.unread == b""
    return journal, in_process


def test_requests_wait_while_the_journals_queue_is_full() -> None:
    journal, in_process = stalled(1000)
    writer, reader = in_process.player(), in_process.player()
    writer.send("XADD s 2-1 n y")
    writer.send("XADD s 3-1 n y")
    reader.send("XLEN s")
    assert len(journal.payloads) == 1
    assert in_process.executor.blocked_count == 2
    journal.write_all()
    assert not in_process.executor.queue_full
    assert writer.unread == b"", "they have run, and their frame is to be written"
    journal.write_all()
    assert [writer.read(), writer.read()] == [b"2-1", b"3-1"]
    assert reader.read() == 3
    assert in_process.executor.blocked_count == 0


@pytest.mark.parametrize("line", SHOW_NO_DATA)
def test_commands_without_data_run_while_the_queue_is_full(line: str) -> None:
    _, in_process = stalled(1000)
    player = in_process.player()
    player.send(line)
    assert player.unread != b""


def test_requests_of_a_client_stay_in_order_with_a_full_queue() -> None:
    _, in_process = stalled(1000)
    player = in_process.player()
    player.send("XLEN s")
    player.send("PING")
    assert player.unread == b"", "the order of a client's requests is kept"


@pytest.mark.parametrize("is_reserved_space_used", [False, True])
def test_the_log_says_why_requests_wait(
    is_reserved_space_used: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if is_reserved_space_used:
        journal = StalledJournal()
        journal.is_queue_full = lambda limit_bytes: True  # type: ignore[method-assign]
        journal.in_process = InProcessServer(journal)
        journal.in_process.executor.limit_queue(1000)
        journal.in_process.player().send("SET k v")
        reason = "the space reserved for the journal is used up"
    else:
        stalled(1000)
        reason = "journal-queue-limit is 1000"
    assert f"bytes wait for the journal ({reason}); requests wait" in caplog.text


def test_a_transaction_waits_as_a_whole_for_a_slow_disk() -> None:
    journal, in_process = stalled(1000)
    player = in_process.player()
    for line in ("MULTI", "XADD s 2-1 n y", "XADD s 3-1 n y", "EXEC"):
        player.send(line)
    assert player.unread == b""
    journal.write_all()
    journal.write_all()
    assert [player.read() for _ in range(4)][3] == [b"2-1", b"3-1"]
    assert len(journal.payloads) == 2, "one frame for all of it"


def test_a_frame_larger_than_the_queues_limit_is_written() -> None:
    journal, in_process = stalled(10)
    journal.write_all()
    player = in_process.player()
    player.send(f"XADD s 5-1 n {'x' * 100_000}")
    assert in_process.executor.queue_full
    journal.write_all()
    assert player.read() == b"5-1"
    assert not in_process.executor.queue_full


def test_held_replies_fill_the_queue_too() -> None:
    journal = StalledJournal()
    in_process = journal.in_process = InProcessServer(journal)
    writer = in_process.player()
    writer.send(f"SET k {'x' * 5000}")
    journal.write_all()
    in_process.executor.limit_queue(20_000)
    writer.send("SET other 1")
    readers = [in_process.player() for _ in range(10)]
    for reader in readers:
        reader.send("GET k")
    assert in_process.executor.queue_full
    assert in_process.executor.outbox.held_bytes < 30_000
    while any(not reader.unread for reader in readers):
        journal.write_all()
    assert not in_process.executor.queue_full
    assert in_process.executor.outbox.held_bytes == 0


def test_waits_end_on_time_while_the_queue_is_full() -> None:
    journal = StalledJournal()
    in_process = journal.in_process = InProcessServer(journal)
    in_process.executor.limit_queue(1000)
    waiting, writer = in_process.player(), in_process.player()
    waiting.send("XREAD BLOCK 500 STREAMS other $")
    writer.send(f"XADD s 1-1 n {'x' * 1000}")
    assert in_process.executor.queue_full
    in_process.wait_ms(500)
    assert in_process.executor.serving.waiting.count == 0
    journal.write_all()
    assert waiting.read() is Null.ARRAY


def test_no_key_expires_while_the_queue_is_full() -> None:
    journal = StalledJournal()
    in_process = journal.in_process = InProcessServer(journal)
    in_process.executor.limit_queue(1000)
    writer = in_process.player()
    writer.send("SET k v PX 100")
    journal.write_all()
    writer.send(f"XADD s 1-1 n {'x' * 1000}")
    before = len(journal.payloads)
    in_process.wait_ms(200)
    assert len(journal.payloads) == before
    journal.write_all()
    in_process.wait_ms(1)
    assert [b"DEL", b"k"] in effects_of(journal.payloads[-1])


def test_a_client_that_disconnects_while_it_waits_is_forgotten() -> None:
    journal, in_process = stalled(1000)
    gone = closing(in_process)
    in_process.executor.feed(gone, request("XADD", "s", "2-1", "n", "y"))
    in_process.settle()
    gone.end(False)
    assert in_process.executor.blocked_count == 0
    journal.write_all()
    assert len(journal.payloads) == 1


def test_a_raised_limit_lets_requests_run() -> None:
    _, in_process = stalled(1000)
    player = in_process.player()
    player.send("XADD s 2-1 n y")
    in_process.executor.limit_queue(1_000_000)
    in_process.settle()
    assert not in_process.executor.queue_full
    assert in_process.executor.blocked_count == 0


def test_a_pause_and_a_slow_disk_may_coincide() -> None:
    journal, in_process = stalled(1000)
    player = in_process.player()
    player.send("XADD s 2-1 n y")
    in_process.executor.pauses.start(in_process.wall_ms + 1000, False)
    journal.write_all()
    assert len(journal.payloads) == 1, "now the pause puts it off"
    in_process.wait_ms(1000)
    journal.write_all()
    assert player.read() == b"2-1"


def test_a_large_tick_is_recorded_in_several_frames() -> None:
    journal = SlowJournal()
    in_process = InProcessServer(journal)
    in_process.executor.limit_queue(1 << 40)
    writer = in_process.player()
    value = "x" * (1 << 20)
    requests = [request("SET", f"k{number}", value) for number in range(40)]
    in_process.executor.feed(writer, b"".join(requests))
    in_process.settle()
    assert len(journal.payloads) > 2
    assert max(map(len, journal.payloads)) < 6 << 20
    names = [words[0] for payload in journal.payloads for words in effects_of(payload)]
    assert names.count(b"SET") == 40
    assert writer.unread == b"", "nothing is durable yet"


def test_a_large_transaction_stays_one_frame() -> None:
    journal = Journal()
    in_process = InProcessServer(journal)
    in_process.executor.limit_queue(100)
    player = in_process.player()
    for line in ("MULTI", *(f"SET k{number} {'x' * 100}" for number in range(20)), "EXEC"):
        player.send(line)
    assert len(journal.payloads) == 1


# ---------------------------------------------------------------- two clocks


class TwoClocks(InProcessServer):
    """The wall clock may jump; timers are noted with their delays."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.steady = NOW_MS
        self.delays_s: list[float] = []
        super().__init__(journal)
        self.loop.call_later = self._call_later  # type: ignore[method-assign]

    def _call_later(self, delay_s: float, callback: object, *args: object) -> Timer:
        self.delays_s.append(delay_s)
        return Timer()

    def steady_ms(self) -> int:
        return self.steady

    def pass_ms(self, span_ms: int) -> None:
        self.steady += span_ms
        self.wait_ms(span_ms)


HOUR_MS = 3_600_000


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, 24 * HOUR_MS])
@pytest.mark.parametrize(
    "line",
    ["XREAD BLOCK 500 STREAMS s $", "TREAD s $ 1 BLOCK 500", "WAIT 1 500",
     "XREADGROUP GROUP g c BLOCK 500 STREAMS s >"],
)  # fmt: skip
def test_waits_ignore_the_wall_clock(line: str, jump_ms: int) -> None:
    in_process = TwoClocks()
    player = in_process.player()
    player.call("XGROUP CREATE s g $ MKSTREAM")
    player.send(line)
    in_process.wall_ms += jump_ms
    in_process.pass_ms(499)
    assert player.unread == b""
    in_process.pass_ms(1)
    assert player.unread != b""


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, 24 * HOUR_MS])
def test_retries_and_idle_times_ignore_the_wall_clock(jump_ms: int) -> None:
    in_process = TwoClocks()
    player = in_process.player()
    player.call("TAPPEND s n v")
    read = "TREAD s 0 1 GROUP g 0 RETRY 2000 86400000"
    assert player.call(read) != []
    in_process.wall_ms += jump_ms
    in_process.pass_ms(1999)
    assert player.call(read) == []
    [[_, _, idle_ms, _]] = player.call("XPENDING s g - + 10")
    assert idle_ms == 1999
    in_process.pass_ms(1)
    assert player.call(read) != []
    again = in_process.replayed().databases[0].stream(b"s")
    assert again is not None
    assert again.groups[b"g"].pending.rows() == in_process.group().pending.rows()


def test_a_groups_time_to_live_uses_the_steady_clock() -> None:
    in_process = TwoClocks()
    player = in_process.player()
    player.call("TAPPEND s n v")
    player.call("TREAD s 0 1 GROUP g 5000")
    in_process.wall_ms += 24 * HOUR_MS
    in_process.pass_ms(4999)
    assert b"g" in in_process.stream().groups
    in_process.wall_ms -= 48 * HOUR_MS
    in_process.pass_ms(1)
    assert b"g" not in in_process.stream().groups


def test_the_time_of_xclaim_is_a_time_of_day() -> None:
    in_process = TwoClocks()
    player = in_process.player()
    player.call("XADD s 1-1 n v")
    player.call("XGROUP CREATE s g 0")
    player.call("XREADGROUP GROUP g c STREAMS s >")
    in_process.wall_ms += HOUR_MS
    player.call(f"XCLAIM s g d 0 1-1 TIME {in_process.wall_ms - 700}")
    [[_, _, idle_ms, _]] = player.call("XPENDING s g - + 10")
    assert idle_ms == 700


def test_the_wall_clock_is_checked_each_second_while_keys_expire() -> None:
    in_process = TwoClocks()
    player = in_process.player()
    player.call("SET k v EX 3600")
    assert in_process.delays_s[-1] == 1.0
    in_process.wall_ms += 24 * HOUR_MS
    in_process.pass_ms(1000)
    assert [b"DEL", b"k"] in effects_of(in_process.persistence.payloads[-1])
    asked = len(in_process.delays_s)
    in_process.pass_ms(1000)
    assert len(in_process.delays_s) == asked, "nothing depends on it any more"


def test_keys_expire_by_the_wall_clock() -> None:
    in_process = TwoClocks()
    player = in_process.player()
    player.call("SET k v PX 500")
    in_process.wall_ms -= HOUR_MS
    in_process.pass_ms(600)
    assert player.call("GET k") == b"v"
    assert player.call("PTTL k") == HOUR_MS - 100


def test_a_call_that_blocks_counts_when_its_wait_ends() -> None:
    in_process = InProcessServer()
    reader, writer = in_process.player(), in_process.player()
    writer.call("XGROUP CREATE s g 0 MKSTREAM")
    for ends in ("XADD s * a 1", "XGROUP DESTROY s g"):
        before = in_process.executor.table.stats().get("xreadgroup")
        reader.send("XREADGROUP GROUP g alice BLOCK 0 STREAMS s >")
        during = in_process.executor.table.stats().get("xreadgroup")
        assert (before and before.calls) == (during and during.calls)
        writer.call(ends)
    counted = in_process.executor.table.stats()["xreadgroup"]
    assert (counted.calls, counted.failed_calls) == (2, 1)


def test_a_pause_of_all_clients_spares_replicas() -> None:
    server = InProcessServer()
    replica, other = server.player(), server.player()
    ended: list[str] = []
    replica.feed = SimpleNamespace(pump=lambda: None, drop=ended.append)
    server.executor.pauses.start(server.wall_ms + 1000, False)
    other.send("PING")
    assert other.unread == b""
    replica.send("PING")  # it runs; a replica that sends requests loses its link
    assert ended == ["it sent a request on the link"]
    assert replica.unread == b""

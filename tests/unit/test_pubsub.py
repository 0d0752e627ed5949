"""Subscriptions against a naive model, and messages on their way through the executor."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.in_process import InProcessClient, InProcessServer, Journal
from tests.support.resp import Push, Simple, encode_command

from millstream.errors import CommandError
from millstream.server.execution.pubsub import PubSub

NAMES = [b"news", b"note", b"n*", b"*e*", b"x"]


@dataclass(eq=False)
class Listener:
    resp: int = 2
    closed: bool = False
    channels: dict[bytes, None] = field(default_factory=dict)
    patterns: dict[bytes, None] = field(default_factory=dict)
    shard_channels: dict[bytes, None] = field(default_factory=dict)
    got: list[bytes] = field(default_factory=list)


def made() -> PubSub:
    return PubSub(lambda client, data: client.got.append(data))


def matches(pattern: bytes, channel: bytes) -> bool:
    return fnmatchcase(channel.decode(), pattern.decode())


ACTIONS = st.tuples(
    st.sampled_from(
        [
            *("subscribe", "unsubscribe", "subscribe_pattern", "unsubscribe_pattern"),
            *("subscribe_shard", "unsubscribe_shard", "forget"),
        ]
    ),
    st.integers(0, 2),
    st.sampled_from(NAMES),
)


@given(st.lists(ACTIONS, max_size=60))
def test_subscriptions_are_those_of_a_naive_model(actions: list[tuple[str, int, bytes]]) -> None:
    pubsub, listeners = made(), [Listener() for _ in range(3)]
    channels: list[list[bytes]] = [[], [], []]
    patterns: list[list[bytes]] = [[], [], []]
    shards: list[list[bytes]] = [[], [], []]
    for action, number, name in actions:
        if action == "forget":
            pubsub.forget(listeners[number])
            channels[number], patterns[number], shards[number] = [], [], []
            continue
        getattr(pubsub, action)(listeners[number], name)
        by_kind = {"pattern": patterns, "shard": shards}
        held = by_kind.get(action.partition("_")[2], channels)[number]
        if action.startswith("subscribe"):
            held += [name] if name not in held else []
        elif name in held:
            held.remove(name)
    for listener, names, globs, shard in zip(listeners, channels, patterns, shards, strict=True):
        assert list(listener.channels) == names
        assert list(listener.patterns) == globs
        assert list(listener.shard_channels) == shard
    assert set(pubsub.shard_channels()) == {name for names in shards for name in names}
    assert set(pubsub.channels()) == {name for names in channels for name in names}
    assert pubsub.pattern_count == len({glob for globs in patterns for glob in globs})
    for channel in NAMES:
        times = [
            (channel in names) + sum(matches(glob, channel) for glob in globs)
            for names, globs in zip(channels, patterns, strict=True)
        ]
        assert pubsub.listeners_of(channel) == sum(channel in names for names in channels)
        for listener in listeners:
            listener.got.clear()
        assert pubsub.publish(channel, b"hello") == sum(times)
        assert [len(listener.got) for listener in listeners] == times
        assert pubsub.publish_shard(channel, b"hello") == sum(channel in names for names in shards)
        assert pubsub.shard_listeners_of(channel) == sum(channel in names for names in shards)


def test_each_client_gets_the_form_of_its_protocol() -> None:
    pubsub, old, new = made(), Listener(resp=2), Listener(resp=3)
    pubsub.subscribe(old, b"c")
    pubsub.subscribe(new, b"c")
    pubsub.publish(b"c", b"hi")
    assert old.got == [b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n"]
    assert new.got == [b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n"]


def test_a_closed_client_is_not_counted() -> None:
    pubsub, gone = made(), Listener(closed=True)
    pubsub.subscribe(gone, b"c")
    assert pubsub.publish(b"c", b"hi") == 0
    assert gone.got == []


def test_a_pattern_that_is_too_long_changes_nothing() -> None:
    pubsub, listener = made(), Listener()
    with pytest.raises(CommandError):
        pubsub.subscribe_pattern(listener, b"*" * 100_000)
    assert (pubsub.pattern_count, listener.patterns) == (0, {})


def test_keyspace_events_have_two_channels_each_with_its_switch() -> None:
    pubsub, listener = made(), Listener()
    pubsub.subscribe_pattern(listener, b"*")
    received = []
    for letters in ("", "E$", "K$", "KE$"):
        assert pubsub.publish_events(letters) == (letters != "")
        pubsub.keyspace_event(b"$", b"set", b"k", 3)
        received.append([data.split(b"\r\n")[6::2] for data in listener.got])
        listener.got.clear()
    by_key, by_event = [b"__keyspace@3__:k", b"set"], [b"__keyevent@3__:set", b"k"]
    assert received == [[], [by_event], [by_key], [by_key, by_event]]


# Through the executor


class Exchange(InProcessServer):
    """A in_process with subscriptions."""

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self.pubsub = PubSub(self.executor.push_encoded)

    def push(self, client: Any, message: object) -> None:
        self.executor.push(client, message)


class SlowJournal(Journal):
    """Nothing is durable until the test reports it."""

    def commit(self, payload: bytes) -> int:
        self.payloads.append(payload)
        self.last_seq = len(self.payloads)
        return self.last_seq


def listening(in_process: Exchange, resp: int = 2) -> InProcessClient:
    player = in_process.player(resp)
    player.call("SUBSCRIBE news")
    return player


def test_a_message_waits_for_earlier_commands() -> None:
    journal = SlowJournal()
    in_process = Exchange(journal)
    listener, writer = listening(in_process), in_process.player()
    writer.send("SET k v")
    writer.send("PUBLISH news k-is-there")
    assert (listener.unread, writer.unread) == (b"", b"")
    journal.durable_seq = journal.last_seq
    in_process.executor.outbox.durable(journal.last_seq)
    assert listener.read() == [b"message", b"news", b"k-is-there"]
    assert writer.unread == b"+OK\r\n:1\r\n"


def test_messages_keep_their_order_among_a_listeners_replies() -> None:
    in_process = Exchange()
    listener, writer = listening(in_process, resp=3), in_process.player()
    for number in range(20):
        writer.call(f"PUBLISH news {number}")
        listener.send(f"ECHO {number}")
    for number in range(20):
        text = str(number).encode()
        assert listener.read() == Push([b"message", b"news", text])
        assert listener.read() == text


def test_own_messages_follow_the_reply_in_a_pipeline_too() -> None:
    in_process = Exchange()
    listener = listening(in_process, resp=3)
    request = b"*3\r\n$7\r\nPUBLISH\r\n$4\r\nnews\r\n$1\r\nx\r\n"
    in_process.executor.feed(listener, request * 3)
    in_process.settle()
    for _ in range(3):
        assert listener.read() == 1
        assert listener.read() == Push([b"message", b"news", b"x"])
    assert listener.unread == b""


def test_a_detached_listener_gets_nothing_more() -> None:
    in_process = Exchange()
    listener, writer = listening(in_process), in_process.player()
    in_process.executor.detach(listener)
    assert writer.call("PUBLISH news x") == 0
    assert listener.unread == b""


# Work for many listeners


class Closable(InProcessClient):
    def end(self, after_reply: bool) -> int:
        self.closed = True
        return 0


def subscribed(in_process: Exchange, count: int) -> list[InProcessClient]:
    listeners: list[InProcessClient] = [Closable(in_process, 2) for _ in range(count)]
    for listener in listeners:
        in_process.executor.attach(listener)
        listener.call("SUBSCRIBE news")
    return listeners


def message_count(listener: InProcessClient) -> int:
    return listener.unread.count(b"$7\r\nmessage")


def one_turn(in_process: Exchange) -> None:
    """Run the callbacks that are ready now, but not those that they add."""
    ready, in_process.loop.ready = in_process.loop.ready, deque()
    while ready:
        ready.popleft()()


def lack(listeners: list[InProcessClient]) -> int:
    return sum(not listener.unread for listener in listeners)


def test_one_turn_sends_to_a_limited_number_of_clients() -> None:
    in_process = Exchange()
    listeners, other = subscribed(in_process, 1200), in_process.player()
    publisher = in_process.player()
    in_process.executor.feed(publisher, encode_command(["PUBLISH", "news", "x"]))
    left = [1200, lack(listeners)]
    while in_process.loop.ready:
        one_turn(in_process)
        left.append(lack(listeners))
        in_process.executor.feed(other, encode_command(["PING"]))
        in_process.executor.end_tick()
        assert other.read() == Simple("PONG")  # not after all listeners
    assert left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) <= 500
    assert publisher.read() == 1200
    assert {tuple(listener.read()) for listener in listeners} == {(b"message", b"news", b"x")}


def test_large_messages_are_sent_in_several_turns() -> None:
    in_process = Exchange()
    listeners, publisher = subscribed(in_process, 20), in_process.player()
    in_process.executor.feed(publisher, encode_command(["PUBLISH", "news", "x" * 1_000_000]))
    left = [20, lack(listeners)]
    while in_process.loop.ready:
        one_turn(in_process)
        left.append(lack(listeners))
    assert max(before - after for before, after in pairwise(left)) <= 5
    assert left[-1] == 0


def test_a_publisher_waits_for_the_output_that_it_caused() -> None:
    in_process = Exchange()
    listeners, publisher = subscribed(in_process, 20), in_process.player()
    request = encode_command(["PUBLISH", "news", "x" * 100_000])
    in_process.executor.feed(publisher, request * 30)
    while in_process.loop.ready:
        one_turn(in_process)
        # 4 MB, and the message that exceeds it, in each of two turns.
        published = publisher.unread.count(b":20")
        unsent = (published * 20 - sum(map(message_count, listeners))) * 100_000
        assert unsent <= 12_000_000
    assert [message_count(listener) for listener in listeners] == [30] * 20
    assert publisher.unread == b":20\r\n" * 30


def test_late_output_of_a_failed_journal_is_not_sent() -> None:
    journal = SlowJournal()
    in_process = Exchange(journal)
    listeners, writer = subscribed(in_process, 600), in_process.player()
    in_process.executor.feed(writer, encode_command(["SET", "k", "v"]))
    in_process.executor.feed(writer, encode_command(["PUBLISH", "news", "x"]))
    in_process.executor.end_tick()
    in_process.executor.journal_failed()
    in_process.settle()
    assert all(listener.closed and not listener.unread for listener in listeners)


def test_late_output_waits_for_the_changes_of_the_same_tick() -> None:
    journal = SlowJournal()
    in_process = Exchange(journal)
    listeners, writer = subscribed(in_process, 600), in_process.player()
    in_process.executor.feed(writer, encode_command(["PUBLISH", "news", "first"]))
    one_turn(in_process)
    assert lack(listeners) == 100  # late
    in_process.executor.feed(writer, encode_command(["SET", "k", "v"]))
    in_process.executor.feed(writer, encode_command(["PUBLISH", "news", "second"]))
    in_process.loop.run()
    assert not any(b"second" in listener.unread for listener in listeners)
    journal.durable_seq = journal.last_seq
    in_process.executor.outbox.durable(journal.last_seq)
    in_process.settle()
    for listener in listeners:
        assert [listener.read()[2] for _ in range(2)] == [b"first", b"second"]


def test_held_output_is_released_in_several_turns_and_in_order() -> None:
    journal = SlowJournal()
    in_process = Exchange(journal)
    listeners, writer = subscribed(in_process, 1200), in_process.player()
    for number in range(2):
        writer.send(f"SET k {number}")
        writer.send(f"PUBLISH news {number}")
    journal.durable_seq = journal.last_seq
    in_process.executor.outbox.durable(journal.last_seq)
    assert 0 < lack(listeners) < 1200
    in_process.executor.feed(writer, encode_command(["PUBLISH", "news", "2"]))
    in_process.settle()
    for listener in listeners:
        assert [listener.read()[2] for _ in range(3)] == [b"0", b"1", b"2"]


def test_a_stop_sends_all_late_output() -> None:
    in_process = Exchange()
    listeners, publisher = subscribed(in_process, 1200), in_process.player()
    in_process.executor.feed(publisher, encode_command(["PUBLISH", "news", "x"]))
    in_process.executor.end_tick()
    in_process.executor.outbox.flush()
    assert lack(listeners) == 0


def test_a_message_is_encoded_once_for_each_protocol() -> None:
    pubsub, listeners = made(), [Listener(resp=2 + number % 2) for number in range(50)]
    for listener in listeners:
        pubsub.subscribe(listener, b"c")
        pubsub.subscribe_pattern(listener, b"c*")
    assert pubsub.publish(b"c", b"hi") == 100
    # One object for each protocol, by name and by pattern.
    assert len({id(data) for listener in listeners for data in listener.got}) == 4


class Noting(InProcessClient):
    """Keeps the objects it is sent."""

    def __init__(self, in_process: InProcessServer, resp: int) -> None:
        super().__init__(in_process, resp)
        self.sent: list[bytes] = []

    def transmit(self, data: bytes) -> int:
        self.sent.append(data)
        return 0


@pytest.mark.parametrize("waits", [False, True])
def test_a_line_of_monitor_is_shared_by_all_monitors(waits: bool) -> None:
    journal = SlowJournal()
    in_process = Exchange(journal)
    watchers = [Noting(in_process, 2 + number % 2) for number in range(20)]
    for number, watcher in enumerate(watchers):
        in_process.executor.attach(watcher)
        in_process.executor.monitors[number] = watcher
    writer = in_process.player()
    writer.send("SET k v" if waits else "ECHO x")
    in_process.executor.outbox.durable(journal.last_seq)
    assert {len(watcher.sent) for watcher in watchers} == {1}
    assert len({id(watcher.sent[0]) for watcher in watchers}) == 2

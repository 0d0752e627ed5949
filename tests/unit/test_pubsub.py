"""Subscriptions against a naive model, and messages on their way through the executor."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.in_process import InProcessClient, InProcessServer, Journal
from tests.support.resp import Push

from millstream.errors import CommandError
from millstream.server.execution.pubsub import PubSub

NAMES = [b"news", b"note", b"n*", b"*e*", b"x"]


@dataclass(eq=False)
class Listener:
    resp: int = 2
    closed: bool = False
    channels: dict[bytes, None] = field(default_factory=dict)
    patterns: dict[bytes, None] = field(default_factory=dict)
    got: list[bytes] = field(default_factory=list)


def made() -> PubSub:
    return PubSub(lambda client, data: client.got.append(data))


def matches(pattern: bytes, channel: bytes) -> bool:
    return fnmatchcase(channel.decode(), pattern.decode())


ACTIONS = st.tuples(
    st.sampled_from(["subscribe", "unsubscribe", "subscribe_pattern", "unsubscribe_pattern"])
    | st.just("forget"),
    st.integers(0, 2),
    st.sampled_from(NAMES),
)


@given(st.lists(ACTIONS, max_size=60))
def test_subscriptions_are_those_of_a_naive_model(actions: list[tuple[str, int, bytes]]) -> None:
    pubsub, listeners = made(), [Listener() for _ in range(3)]
    channels: list[list[bytes]] = [[], [], []]
    patterns: list[list[bytes]] = [[], [], []]
    for action, number, name in actions:
        if action == "forget":
            pubsub.forget(listeners[number])
            channels[number], patterns[number] = [], []
            continue
        getattr(pubsub, action)(listeners[number], name)
        held = (patterns if action.endswith("pattern") else channels)[number]
        if action.startswith("subscribe"):
            held += [name] if name not in held else []
        elif name in held:
            held.remove(name)
    for listener, names, globs in zip(listeners, channels, patterns, strict=True):
        assert list(listener.channels) == names
        assert list(listener.patterns) == globs
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


def test_each_client_gets_its_own_protocols_form() -> None:
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
    told = []
    for pubsub.tells_keyspace in (False, True):
        for pubsub.tells_keyevent in (False, True):
            pubsub.keyspace_event(b"$", b"set", b"k", 3)
            told.append([data.split(b"\r\n")[6::2] for data in listener.got])
            listener.got.clear()
    by_key, by_event = [b"__keyspace@3__:k", b"set"], [b"__keyevent@3__:set", b"k"]
    assert told == [[], [by_event], [by_key], [by_key, by_event]]


# Through the executor


class Exchange(InProcessServer):
    """A in_process with subscriptions."""

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self.pubsub = PubSub(self.executor.push_encoded)

    def push(self, client: Any, message: object) -> None:
        self.executor.push(client, message)


class SlowJournal(Journal):
    """Nothing is durable until the test says so."""

    def commit(self, payload: bytes) -> int:
        self.payloads.append(payload)
        self.last_seq = len(self.payloads)
        return self.last_seq


def listening(in_process: Exchange, resp: int = 2) -> InProcessClient:
    player = in_process.player(resp)
    player.call("SUBSCRIBE news")
    return player


def test_a_message_waits_for_what_was_executed_before_it() -> None:
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


def test_messages_keep_their_order_among_the_replies_of_a_listener() -> None:
    in_process = Exchange()
    listener, writer = listening(in_process, resp=3), in_process.player()
    for number in range(20):
        writer.call(f"PUBLISH news {number}")
        listener.send(f"ECHO {number}")
    for number in range(20):
        text = str(number).encode()
        assert listener.read() == Push([b"message", b"news", text])
        assert listener.read() == text


def test_own_messages_come_after_the_reply_in_a_pipeline_too() -> None:
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
def test_a_line_of_monitor_is_one_object_for_all_who_see_it(waits: bool) -> None:
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

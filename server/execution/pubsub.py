"""The subscribers of each channel, and sending a message to all of them.

Every message is encoded once per protocol, and the same bytes go to all subscribers. Messages go
through the outbox like replies: a message is sent only when everything executed before it is
durable, and unsent messages count against client-output-buffer-limit. Messages are not stored: a
client that is not subscribed at that moment misses the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from millstream.commands.runtime.replies import Push
from millstream.glob import matcher
from millstream.server.protocol.resp import encode_reply


class Listener(Protocol):
    """The attributes of a client that are used here; `channels` and `patterns` are in the order of
    subscription."""

    resp: int
    closed: bool
    channels: dict[bytes, None]
    patterns: dict[bytes, None]


# Sentinels find each other with the messages of this channel, which must not wait for the journal.
SENTINEL_CHANNEL = b"__sentinel__:hello"

Send = Callable[[Any, bytes], object]
Listeners = dict[Listener, None]


class PatternListeners:
    """The subscribers of one pattern."""

    __slots__ = ("listeners", "matches")

    def __init__(self, pattern: bytes) -> None:
        self.matches = matcher(pattern)
        self.listeners: Listeners = {}


class Encoded:
    """A message encoded for each protocol, when the first client with that protocol needs it."""

    __slots__ = ("_forms", "_message")

    def __init__(self, *message: bytes) -> None:
        self._message = Push(message)
        self._forms: dict[int, bytes] = {}

    def form(self, resp: int) -> bytes:
        if resp not in self._forms:
            self._forms[resp] = encode_reply(self._message, resp)
        return self._forms[resp]


class PubSub:
    """All subscriptions of a server. `send(client, data)` sends an encoded message to a client;
    `send_at_once` does the same for a message that does not wait for the journal."""

    def __init__(self, send: Send, send_at_once: Send | None = None) -> None:
        self._send = send
        self._send_at_once = send_at_once or send
        self._channels: dict[bytes, Listeners] = {}
        self._patterns: dict[bytes, PatternListeners] = {}
        self._clients: dict[Listener, None] = {}
        # Which of the two channels of a keyspace event are published: notify-keyspace-events K and
        # E.
        self.tells_keyspace = False
        self.tells_keyevent = False

    # Subscribing

    def subscribe(self, client: Listener, channel: bytes) -> None:
        self._channels.setdefault(channel, {})[client] = None
        client.channels[channel] = None
        self._clients[client] = None

    def unsubscribe(self, client: Listener, channel: bytes) -> None:
        if channel in client.channels:
            del client.channels[channel]
            listeners = self._channels[channel]
            del listeners[client]
            if not listeners:
                del self._channels[channel]
            self._forget_idle(client)

    def subscribe_pattern(self, client: Listener, pattern: bytes) -> None:
        """CommandError when the pattern is too long to be one."""
        if pattern not in self._patterns:
            self._patterns[pattern] = PatternListeners(pattern)
        self._patterns[pattern].listeners[client] = None
        client.patterns[pattern] = None
        self._clients[client] = None

    def unsubscribe_pattern(self, client: Listener, pattern: bytes) -> None:
        if pattern in client.patterns:
            del client.patterns[pattern]
            listeners = self._patterns[pattern].listeners
            del listeners[client]
            if not listeners:
                del self._patterns[pattern]
            self._forget_idle(client)

    def _forget_idle(self, client: Listener) -> None:
        if not client.channels and not client.patterns:
            del self._clients[client]

    def forget(self, client: Listener) -> None:
        """End the subscriptions of a client that disconnected or was reset, without a message."""
        for channel in list(client.channels):
            self.unsubscribe(client, channel)
        for pattern in list(client.patterns):
            self.unsubscribe_pattern(client, pattern)

    # Publishing

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message; return how often it was sent. A client that is subscribed to the channel
        and to a matching pattern gets it twice and counts twice."""
        sent = 0
        if channel in self._channels:
            encoded = Encoded(b"message", channel, message)
            send = self._send_at_once if channel == SENTINEL_CHANNEL else self._send
            sent += self._send_all(self._channels[channel], encoded, send)
        for pattern, found in list(self._patterns.items()):
            if found.matches(channel):
                encoded = Encoded(b"pmessage", pattern, channel, message)
                sent += self._send_all(found.listeners, encoded, self._send)
        return sent

    @staticmethod
    def _send_all(listeners: Iterable[Listener], encoded: Encoded, send: Send) -> int:
        sent = 0
        for client in list(listeners):
            if not client.closed:
                send(client, encoded.form(client.resp))
                sent += 1
        return sent

    def keyspace_event(self, kind: bytes, event: bytes, key: bytes, db_index: int) -> None:
        """Publish an event at a key. The caller has checked that events of its kind are
        published."""
        if not self._clients:
            return
        if self.tells_keyspace:
            self.publish(b"__keyspace@%d__:%b" % (db_index, key), event)
        if self.tells_keyevent:
            self.publish(b"__keyevent@%d__:%b" % (db_index, event), key)

    # Inspecting

    def channels(self) -> list[bytes]:
        """The channels that have subscribers by name."""
        return list(self._channels)

    def listeners_of(self, channel: bytes) -> int:
        """The number of clients that are subscribed to this channel by name."""
        return len(self._channels.get(channel, ()))

    @property
    def channel_count(self) -> int:
        return len(self._channels)

    @property
    def pattern_count(self) -> int:
        """The number of different patterns."""
        return len(self._patterns)

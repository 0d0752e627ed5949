"""The subscribers of each channel, and sending a message to all of them.

Every message is encoded once per protocol, and the same bytes go to all subscribers. Messages go
through the outbox like replies: a message is sent only when everything executed before it is
durable, and unsent messages count against client-output-buffer-limit. Messages are not stored: a
client that is not subscribed at that moment misses the message.

A shard channel is separate from a channel of the same name. In a cluster of Redis its messages stay
in one shard; here they differ only in their commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from millstream.commands.runtime.replies import Push
from millstream.glob import matcher
from millstream.server.protocol.resp import encode_reply


class Listener(Protocol):
    """The attributes of a client that are used here; `channels`, `patterns` and `shard_channels`
    are in the order of subscription."""

    resp: int
    closed: bool
    channels: dict[bytes, None]
    patterns: dict[bytes, None]
    shard_channels: dict[bytes, None]


# Sentinels find each other with the messages of this channel, which must not wait for the journal.
SENTINEL_CHANNEL = b"__sentinel__:hello"

Send = Callable[[Any, bytes], object]
Listeners = dict[Listener, None]


class Subscribers:
    """The subscribers of each name: of channels, of patterns, or of shard channels."""

    def __init__(self) -> None:
        self._by_name: dict[bytes, Listeners] = {}

    def add(self, client: Listener, names: dict[bytes, None], name: bytes) -> None:
        """Subscribe a client; `names` are its subscriptions of this kind."""
        self._by_name.setdefault(name, {})[client] = None
        names[name] = None

    def remove(self, client: Listener, names: dict[bytes, None], name: bytes) -> None:
        """End a subscription. No effect if the client does not have it."""
        if name in names:
            del names[name]
            listeners = self._by_name[name]
            del listeners[client]
            if not listeners:
                del self._by_name[name]

    def of(self, name: bytes) -> Listeners:
        return self._by_name.get(name, {})

    def names(self) -> list[bytes]:
        """The names that have subscribers."""
        return list(self._by_name)

    def __contains__(self, name: bytes) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self._by_name)


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
        self._channels = Subscribers()
        self._patterns = Subscribers()
        self._shard_channels = Subscribers()
        self._matchers: dict[bytes, Callable[[bytes], object]] = {}  # of each pattern
        self._by_key = self._by_event = False  # the channels of keyspace events

    def publish_events(self, letters: str) -> bool:
        """notify-keyspace-events: K and E choose the channels of keyspace events. Return whether
        there are any."""
        self._by_key, self._by_event = "K" in letters, "E" in letters
        return self._by_key or self._by_event

    # Subscribing

    def subscribe(self, client: Listener, channel: bytes) -> None:
        self._channels.add(client, client.channels, channel)

    def unsubscribe(self, client: Listener, channel: bytes) -> None:
        self._channels.remove(client, client.channels, channel)

    def subscribe_pattern(self, client: Listener, pattern: bytes) -> None:
        """CommandError when the pattern is too long to be one."""
        if pattern not in self._matchers:
            self._matchers[pattern] = matcher(pattern)
        self._patterns.add(client, client.patterns, pattern)

    def unsubscribe_pattern(self, client: Listener, pattern: bytes) -> None:
        self._patterns.remove(client, client.patterns, pattern)
        if pattern not in self._patterns:
            self._matchers.pop(pattern, None)

    def subscribe_shard(self, client: Listener, channel: bytes) -> None:
        self._shard_channels.add(client, client.shard_channels, channel)

    def unsubscribe_shard(self, client: Listener, channel: bytes) -> None:
        self._shard_channels.remove(client, client.shard_channels, channel)

    def end_shard_channel(self, channel: bytes) -> list[Listener]:
        """End all subscriptions to a shard channel; the clients that had one."""
        clients = list(self._shard_channels.of(channel))
        for client in clients:
            self.unsubscribe_shard(client, channel)
        return clients

    def forget(self, client: Listener) -> None:
        """End the subscriptions of a client that disconnected or was reset, without a message."""
        for channel in list(client.channels):
            self.unsubscribe(client, channel)
        for pattern in list(client.patterns):
            self.unsubscribe_pattern(client, pattern)
        for channel in list(client.shard_channels):
            self.unsubscribe_shard(client, channel)

    # Publishing

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message; return how often it was sent. A client that is subscribed to the channel
        and to a matching pattern gets it twice and counts twice."""
        sent = 0
        if channel in self._channels:
            encoded = Encoded(b"message", channel, message)
            send = self._send_at_once if channel == SENTINEL_CHANNEL else self._send
            sent += self._send_all(self._channels.of(channel), encoded, send)
        for pattern, matches in list(self._matchers.items()):
            if matches(channel):
                encoded = Encoded(b"pmessage", pattern, channel, message)
                sent += self._send_all(self._patterns.of(pattern), encoded, self._send)
        return sent

    def publish_shard(self, channel: bytes, message: bytes) -> int:
        """Send a message to the subscribers of a shard channel; return their number. Patterns do
        not match shard channels."""
        encoded = Encoded(b"smessage", channel, message)
        return self._send_all(self._shard_channels.of(channel), encoded, self._send)

    @staticmethod
    def _send_all(listeners: Iterable[Listener], encoded: Encoded, send: Send) -> int:
        sent = 0
        for client in list(listeners):
            if not client.closed:
                send(client, encoded.form(client.resp))
                sent += 1
        return sent

    def deliver(self, channel: bytes, message: bytes, *, is_shard: bool) -> None:
        """Publish a message that the primary of this server has sent."""
        if is_shard:
            self.publish_shard(channel, message)
        else:
            self.publish(channel, message)

    def keyspace_event(self, kind: bytes, event: bytes, key: bytes, db_index: int) -> None:
        """Publish an event at a key. The caller has checked that events of its kind are
        published."""
        if not self._channels and not self._patterns:
            return
        if self._by_key:
            self.publish(b"__keyspace@%d__:%b" % (db_index, key), event)
        if self._by_event:
            self.publish(b"__keyevent@%d__:%b" % (db_index, event), key)

    # Inspecting

    def channels(self) -> list[bytes]:
        """The channels that have subscribers by name."""
        return self._channels.names()

    def listeners_of(self, channel: bytes) -> int:
        """The number of clients that are subscribed to this channel by name."""
        return len(self._channels.of(channel))

    def shard_channels(self) -> list[bytes]:
        """The shard channels that have subscribers."""
        return self._shard_channels.names()

    def shard_listeners_of(self, channel: bytes) -> int:
        """The number of clients that are subscribed to this shard channel."""
        return len(self._shard_channels.of(channel))

    @property
    def channel_count(self) -> int:
        return len(self._channels)

    @property
    def pattern_count(self) -> int:
        """The number of different patterns."""
        return len(self._patterns)

    @property
    def shard_channel_count(self) -> int:
        return len(self._shard_channels)

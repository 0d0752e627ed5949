"""Publish and subscribe: messages go to all current subscribers; none are stored.

Replies to subscriptions are pushes, one for each channel, so that a client can distinguish them
from messages. The executor decides which other commands of a RESP2 client may run while it has
subscriptions, because in RESP2 it could not distinguish messages and replies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context, Session
from millstream.commands.runtime.replies import NO_REPLY, Push, Several
from millstream.commands.table.containers import Container, wrong_subcommand
from millstream.commands.table.keyspecs import NOT_KEY
from millstream.commands.table.registry import CommandGroup
from millstream.errors import CommandError
from millstream.glob import matcher

command = CommandGroup("pubsub", since="2.0.0")

# In Redis, a client of a transaction may subscribe to channels, but not to shard channels.
_DENIED_IN_MULTI = "ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client"


if TYPE_CHECKING:

    class Subscriptions(Protocol):
        """The subscribers of channels, patterns and shard channels."""

        def subscribe(self, client: Any, channel: bytes) -> None: ...
        def unsubscribe(self, client: Any, channel: bytes) -> None: ...
        def subscribe_pattern(self, client: Any, pattern: bytes) -> None: ...
        def unsubscribe_pattern(self, client: Any, pattern: bytes) -> None: ...
        def subscribe_shard(self, client: Any, channel: bytes) -> None: ...
        def unsubscribe_shard(self, client: Any, channel: bytes) -> None: ...

        def publish(self, channel: bytes, message: bytes) -> int:
            """Sends a message; returns how often it was sent."""

        def publish_shard(self, channel: bytes, message: bytes) -> int:
            """Sends a message to the subscribers of a shard channel; returns their number."""

        @property
        def pattern_count(self) -> int: ...

        def channels(self) -> list[bytes]: ...
        def listeners_of(self, channel: bytes) -> int: ...
        def shard_channels(self) -> list[bytes]: ...
        def shard_listeners_of(self, channel: bytes) -> int: ...

    class ReplicaSubscribers(Protocol):
        def publish(self, channel: bytes, message: bytes, *, is_shard: bool = False) -> None:
            """Passes a message to the subscribers at replicas."""

    class OtherNodes(Protocol):
        def publish(self, channel: bytes, message: bytes, *, is_shard: bool = False) -> None:
            """Passes a message to the subscribers of the other nodes of a cluster."""

    class PubSubHost(Protocol):
        @property
        def pubsub(self) -> Subscriptions: ...
        @property
        def replication(self) -> ReplicaSubscribers: ...
        @property
        def cluster(self) -> OtherNodes | None: ...

        def push(self, client: Any, message: object) -> None:
            """Sends a client a separate message, after the reply of the running command."""


One = Callable[["Session", bytes], None]
Count = Callable[["Session"], int]


def subscription_count(session: Session) -> int:
    """The number of channels and patterns, which ends every reply about them."""
    return len(session.channels) + len(session.patterns)


def shard_subscription_count(session: Session) -> int:
    """The number of shard channels, which ends every reply about them."""
    return len(session.shard_channels)


def _answer(ctx: Context[PubSubHost], answers: list[Push]) -> object:
    """Replies to subscriptions are messages, so CLIENT REPLY OFF does not drop them."""
    if ctx.session.reply_mode == "on":
        return Several(answers)
    for answer in answers:
        ctx.server.push(ctx.session, answer)
    return NO_REPLY


def _each(
    ctx: Context, word: bytes, names: list[bytes], one: One, count: Count = subscription_count
) -> list[Push]:
    answers = []
    for name in names:
        one(ctx.session, name)
        answers.append(Push([word, name, count(ctx.session)]))
    return answers


def _unsubscribe(
    ctx: Context,
    word: bytes,
    names: list[bytes],
    held: Collection[bytes],
    one: One,
    count: Count = subscription_count,
) -> object:
    """Without names: end all subscriptions; a client without any gets a null."""
    answers = _each(ctx, word, names or list(held), one, count)
    return _answer(ctx, answers or [Push([word, None, count(ctx.session)])])


@command(
    "SUBSCRIBE channel [channel ...]",
    "pubsub noscript loading stale denyoom subscribed dataless channels",
    complexity="O(N), N the number of channels",
)
def subscribe(ctx: Context[PubSubHost], args: Args) -> object:
    """Listens for messages published to channels.

    For each channel, a push of `subscribe`, the channel's name and the client's number of
    subscriptions. Each message then arrives as a push of `message`, the channel and the message.
    """
    return _answer(ctx, _each(ctx, b"subscribe", args.rest(), ctx.server.pubsub.subscribe))


@command(
    "PSUBSCRIBE pattern [pattern ...]",
    "pubsub noscript loading stale denyoom subscribed dataless patterns",
    complexity="O(N), N the number of patterns",
)
def psubscribe(ctx: Context[PubSubHost], args: Args) -> object:
    """Listens for messages published to channels that match one or more patterns.

    Works like SUBSCRIBE; each message arrives as a push of `pmessage`, the pattern, the channel and
    the message.
    """
    patterns = args.rest()
    for pattern in patterns:
        matcher(pattern)  # an invalid pattern refuses the whole command
    one = ctx.server.pubsub.subscribe_pattern
    return _answer(ctx, _each(ctx, b"psubscribe", patterns, one))


@command(
    "UNSUBSCRIBE [channel [channel ...]]",
    "pubsub noscript loading stale subscribed dataless",
    complexity="O(N), N the number of channels",
)
def unsubscribe(ctx: Context[PubSubHost], args: Args) -> object:
    """Stops listening to messages posted to channels.

    Without channels, it ends all subscriptions to channels; subscriptions to patterns stay. There
    is always a reply, even for a channel that was not subscribed.
    """
    names, held = args.rest(), ctx.session.channels
    return _unsubscribe(ctx, b"unsubscribe", names, held, ctx.server.pubsub.unsubscribe)


@command(
    "PUNSUBSCRIBE [pattern [pattern ...]]",
    "pubsub noscript loading stale subscribed dataless",
    complexity="O(N), N the number of patterns",
)
def punsubscribe(ctx: Context[PubSubHost], args: Args) -> object:
    """Stops listening to messages published to channels that match one or more patterns.

    Works like UNSUBSCRIBE, for patterns. The argument is the pattern itself, not a channel that it
    matches.
    """
    names, held = args.rest(), ctx.session.patterns
    one = ctx.server.pubsub.unsubscribe_pattern
    return _unsubscribe(ctx, b"punsubscribe", names, held, one)


@command(
    "PUBLISH channel message",
    "pubsub loading stale fast dataless tells channel",
    complexity="O(N+M), N the listeners of the channel, M the number of patterns",
)
def publish(ctx: Context[PubSubHost], args: Args) -> object:
    """Posts a message to a channel.

    The reply is the number of clients that received the message, not counting those of replicas and
    of other nodes of a cluster. If the publisher is itself subscribed, it gets the message after
    this reply. Subscribers on replicas get messages of up to 256 KB, unless the replica is slow;
    those on other nodes messages of up to 1 MB.
    """
    channel, message = args.take(), args.take()
    if ctx.server.cluster is not None:
        ctx.server.cluster.publish(channel, message)
    ctx.server.replication.publish(channel, message)
    return ctx.server.pubsub.publish(channel, message)


# Shard channels


@command(
    "SSUBSCRIBE shardchannel [shardchannel ...]",
    "pubsub noscript loading stale denyoom subscribed dataless channels",
    keys=NOT_KEY,
    since="7.0.0",
    complexity="O(N), N the number of shard channels",
)
def ssubscribe(ctx: Context[PubSubHost], args: Args) -> object:
    """Listens for messages published to shard channels.

    For each shard channel, a push of `ssubscribe`, its name and the client's number of shard
    channels. Each message then arrives as a push of `smessage`, the shard channel and the message.
    Shard channels are separate from the channels of SUBSCRIBE, and patterns do not match them.
    In a cluster, they belong to a slot, as keys do; otherwise a client may subscribe to any
    together.
    """
    if not ctx.may_block:
        raise CommandError(_DENIED_IN_MULTI)
    one = ctx.server.pubsub.subscribe_shard
    return _answer(ctx, _each(ctx, b"ssubscribe", args.rest(), one, shard_subscription_count))


@command(
    "SUNSUBSCRIBE [shardchannel [shardchannel ...]]",
    "pubsub noscript loading stale subscribed dataless",
    keys=NOT_KEY,
    since="7.0.0",
    complexity="O(N), N the number of shard channels",
)
def sunsubscribe(ctx: Context[PubSubHost], args: Args) -> object:
    """Stops listening to messages posted to shard channels.

    Without shard channels, it ends all subscriptions to them; those to channels and patterns stay.
    There is always a reply, even for a shard channel that was not subscribed.
    """
    names, held = args.rest(), ctx.session.shard_channels
    one = ctx.server.pubsub.unsubscribe_shard
    return _unsubscribe(ctx, b"sunsubscribe", names, held, one, shard_subscription_count)


@command(
    "SPUBLISH shardchannel message",
    "pubsub loading stale fast dataless tells channel",
    keys=NOT_KEY,
    since="7.0.0",
    complexity="O(N), N the listeners of the shard channel",
)
def spublish(ctx: Context[PubSubHost], args: Args) -> object:
    """Posts a message to a shard channel.

    The reply is the number of clients that received the message, not counting those of replicas.
    Subscribers on replicas get messages of up to 256 KB, unless the replica is slow.
    """
    channel, message = args.take(), args.take()
    if ctx.server.cluster is not None:
        ctx.server.cluster.publish(channel, message, is_shard=True)
    ctx.server.replication.publish(channel, message, is_shard=True)
    return ctx.server.pubsub.publish_shard(channel, message)


# PUBSUB

pubsub_command = Container(
    "PUBSUB",
    "pubsub",
    "A container for Pub/Sub commands.",
    since="2.8.0",
    tags="pubsub loading stale",
)


def _matching(args: Args, channels: list[bytes]) -> list[bytes]:
    """The channels that match the pattern of the request, if it has one."""
    if args.remaining > 1:
        raise wrong_subcommand("PUBSUB", args[1])
    if args.remaining:
        matches = matcher(args.take())
        return [channel for channel in channels if matches(channel)]
    return channels


@pubsub_command("CHANNELS [pattern]", complexity="O(N), N the number of active channels")
def pubsub_channels(ctx: Context[PubSubHost], args: Args) -> object:
    """Returns the active channels.

    The reply is the channels that match the pattern and have at least one subscriber by name."""
    return _matching(args, ctx.server.pubsub.channels())


@pubsub_command("NUMSUB [channel [channel ...]]", complexity="O(N), N the number of channels")
def pubsub_numsub(ctx: Context[PubSubHost], args: Args) -> object:
    """Returns a count of subscribers to channels.

    The reply has each channel, followed by the number of its subscribers by name."""
    count = ctx.server.pubsub.listeners_of
    return [item for channel in args.rest() for item in (channel, count(channel))]


@pubsub_command("NUMPAT")
def pubsub_numpat(ctx: Context[PubSubHost], args: Args) -> object:
    """Returns a count of unique pattern subscriptions."""
    return ctx.server.pubsub.pattern_count


@pubsub_command("SHARDCHANNELS [pattern]", since="7.0.0")
def pubsub_shardchannels(ctx: Context[PubSubHost], args: Args) -> object:
    """Returns the active shard channels.

    The reply is the shard channels that match the pattern and have at least one subscriber."""
    return _matching(args, ctx.server.pubsub.shard_channels())


@pubsub_command("SHARDNUMSUB [shardchannel [shardchannel ...]]", since="7.0.0")
def pubsub_shardnumsub(ctx: Context[PubSubHost], args: Args) -> object:
    """Returns the count of subscribers of shard channels.

    The reply has each shard channel, followed by the number of its subscribers."""
    count = ctx.server.pubsub.shard_listeners_of
    return [item for channel in args.rest() for item in (channel, count(channel))]

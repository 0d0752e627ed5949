"""CLUSTER PEER, PROMISE, RELAY, COPYSLOTS and RETURNSLOTS: what the nodes of a cluster on many
machines ask each other.

A connection of a node begins with PEER and the secret of the cluster. For others, the other
subcommands are unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from millstream.commands.admin.cluster import cluster_command
from millstream.commands.admin.replication import FrameWaits, PositionWait
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context, Session
from millstream.commands.runtime.replies import NO_REPLY, OK, Wait
from millstream.commands.table.containers import unknown_subcommand
from millstream.errors import SYNTAX, CommandError
from millstream.storage.keyspace.slot_ranges import Ranges, checked_ranges

if TYPE_CHECKING:
    from millstream.commands.admin.pubsub import Subscriptions

TERM_MAX = 2**63 - 1


class LastFrame(NamedTuple):
    """The last frame on the disk of a member: the term and the ID of its line of history, and its
    number. Of two members, the one with the greater (term, number) has all that the other one could
    have confirmed."""

    term: int
    history: str
    number: int


class Reason(StrEnum):
    """The reason for an election: the primary is silent, or an operator has ordered it. Ordered
    ones take place although the primary works: after a FAILOVER it waits until the candidate has
    all frames, after FORCE it does not."""

    SILENCE = "SILENCE"
    FAILOVER = "FAILOVER"
    FORCE = "FORCE"


class MessageKind(StrEnum):
    """The command with which a message was published: to a channel, or to a shard channel."""

    CHANNEL = "PUBLISH"
    SHARD = "SPUBLISH"


class PromiseRequest(NamedTuple):
    """A request for a promise: the shard, the term, the ID of the candidate, the reason, and the ID
    of the member that is asked, because its address may be that of another one by now."""

    shard: str
    term: int
    candidate: str
    reason: Reason
    node: str


class SlotRequest(NamedTuple):
    """A request for slots that move: the ID of the move, the ID and the term of the primary that is
    asked, the ranges of slots, and the place where to continue: a line of history of that primary,
    the number of a frame, and the last slot that is complete; None: from the beginning."""

    move: str
    node: str
    term: int
    ranges: Ranges
    place: tuple[str, int, int] | None


class ReturnRequest(NamedTuple):
    """The primary of a shard from which slots have left wants to serve them again: the ID of the
    move, the ID and the term of the primary that is asked, and the number of hand-overs that were
    taken back: those before it do not count any more."""

    move: str
    node: str
    term: int
    retries: int


class SlotTargets(Protocol):
    """The links of other shards that get slots of this one (server/cluster/slot_moves)."""

    def sync(self, client: Session, asked: SlotRequest) -> None:
        """Begins to send. CommandError if this node refuses."""

    def acknowledge(self, client: Session, number: int) -> None:
        """The target has everything up to this frame."""

    def ask(self, client: Session, asked_round: int) -> None:
        """The target asks for the hand-over."""


class Peers(Protocol):
    """The other nodes of the cluster (server/cluster/peers)."""

    def admit(self, session: Session, secret: bytes) -> None:
        """The client says that it is a node. CommandError if its secret is wrong."""

    def knows(self, session: Session) -> bool:
        """True if the client is a node."""

    def promise(self, asked: PromiseRequest) -> None:
        """Acknowledges no lower term from now on; CommandError if this node refuses."""

    @property
    def is_promise_stored(self) -> bool:
        """True if the promise holds also after a restart."""

    def describe(self) -> bytes:
        """The knowledge of this node of the cluster, as JSON."""

    @property
    def give_back(self) -> Callable[[ReturnRequest], object]:
        """Says that this shard does not serve the slots of a move, and never will after the
        hand-overs until now. CommandError if it may serve them, and TRYAGAIN for a moment."""

    def standing(self) -> LastFrame:
        """The last frame of this member; CommandError if it is not known."""

    @property
    def targets(self) -> SlotTargets | None:
        """None: slots cannot move from here."""


class PeersNode(Protocol):
    @property
    def peers(self) -> Peers | None: ...


class PeersHost(Protocol):
    @property
    def waits(self) -> FrameWaits: ...
    @property
    def cluster(self) -> PeersNode | None: ...
    @property
    def pubsub(self) -> Subscriptions: ...


def _peers(ctx: Context[PeersHost], args: Args) -> Peers:
    """CommandError, as for an unknown subcommand, on a server that has no peers."""
    node = ctx.server.cluster
    if node is None or node.peers is None:
        raise unknown_subcommand("CLUSTER", args[1])
    return node.peers


def _peers_of_node(ctx: Context[PeersHost], args: Args) -> Peers:
    """CommandError, as for an unknown subcommand, also if the client is no node."""
    peers = _peers(ctx, args)
    if not peers.knows(ctx.session):
        raise unknown_subcommand("CLUSTER", args[1])
    return peers


def _targets(ctx: Context[PeersHost], args: Args) -> SlotTargets:
    """The same for subcommands about slots that move."""
    targets = _peers_of_node(ctx, args).targets
    if targets is None:
        raise unknown_subcommand("CLUSTER", args[1])
    return targets


@cluster_command(
    "PEER secret:string",
    "admin noscript loading dataless no_auth no_multi",
    known_after=_peers,
)
def cluster_peer(ctx: Context[PeersHost], args: Args) -> object:
    """An internal command between the nodes of a cluster.

    The first request of a connection between nodes on several machines: the secret of the cluster
    (`cluster-secret-file`, or else that in etcd). The reply is OK."""
    _peers(ctx, args).admit(ctx.session, args.take())
    return OK


@cluster_command(
    "SEEN", "admin noscript dataless no_multi nondeterministic_output", known_after=_peers
)
def cluster_seen(ctx: Context[PeersHost], args: Args) -> object:
    """An internal command, of `millstream cluster init --from-nodes`.

    The reply is JSON: what this node has seen last in etcd, the greatest term that it has promised,
    its last frame on the disk, and how many members confirm its frames."""
    return _peers(ctx, args).describe()


class PromiseWait(PositionWait):
    """PROMISE: until the promise is on the disk."""

    def __init__(self, ctx: Context, peers: Peers) -> None:
        super().__init__(ctx, 0)
        self.peers = peers

    def is_over(self) -> bool:
        return self.peers.is_promise_stored

    def timeout_reply(self, ctx: Context) -> object:
        try:
            last = self.peers.standing()
        except CommandError as error:
            return error
        return [last.term, last.history.encode(), last.number]


@cluster_command(
    "PROMISE shard:string term:integer candidate:string reason:string node:string",
    "admin noscript no_async_loading dataless blocking no_auth no_multi",
    known_after=_peers_of_node,
)
def cluster_promise(ctx: Context[PeersHost], args: Args) -> object:
    """An internal command between the nodes of a cluster.

    Sent by the candidate of an election: this member of the shard acknowledges nothing to the
    primary of a lower term from now on. The reason is SILENCE (of the primary), FAILOVER or FORCE
    (an operator has ordered the election). The reply, sent when that is on the disk, is the last
    frame on the disk: the term of its line of history (0: none), the ID of that line, and the
    number.
    """
    peers = _peers_of_node(ctx, args)
    shard, term = args.take(), args.take_int()
    candidate, word, node = (args.take().decode("latin-1") for _ in range(3))
    if not 0 < term <= TERM_MAX:
        raise CommandError("ERR the number of a term is 1 or more")
    try:
        reason = Reason(word)
    except ValueError:
        raise CommandError(SYNTAX) from None
    peers.promise(PromiseRequest(shard.decode("latin-1"), term, candidate, reason, node))
    waiting = PromiseWait(ctx, peers)
    if not ctx.may_block or waiting.is_over():
        return waiting.timeout_reply(ctx)
    ctx.server.waits.add(waiting)
    return Wait(waiting, 0)


@cluster_command(
    "RELAY kind:string channel:string message:string",
    "admin noscript loading dataless no_auth no_multi",
    known_after=_peers_of_node,
)
def cluster_relay(ctx: Context[PeersHost], args: Args) -> object:
    """An internal command between the nodes of a cluster.

    A message that was published at another node, for the subscribers of this one. The kind is
    PUBLISH, or SPUBLISH for a shard channel. The reply is the number of clients that received the
    message."""
    _peers_of_node(ctx, args)
    word, channel, message = args.take(), args.take(), args.take()
    try:
        kind = MessageKind(word.decode("latin-1"))
    except ValueError:
        raise CommandError(SYNTAX) from None
    if kind is MessageKind.SHARD:
        return ctx.server.pubsub.publish_shard(channel, message)
    return ctx.server.pubsub.publish(channel, message)


@cluster_command(
    "COPYSLOTS move:string node:string term:integer history:string number:integer slot:integer "
    "<range: start-slot:integer end-slot:integer> [start-slot:integer end-slot:integer ...]",
    "admin noscript no_async_loading dataless no_auth no_multi",
    known_after=_targets,
)
def cluster_copyslots(ctx: Context[PeersHost], args: Args) -> object:
    """An internal command between the nodes of a cluster.

    Sent by the primary of a shard to which slots move: this node, which must be the primary of this
    term, sends the keys of the slots, and then the effects on them. With a line of history (not
    `?`), the sender has the slots up to this one as they were after the frame of this number.
    """
    targets = _targets(ctx, args)
    move, node = args.take().decode("latin-1"), args.take().decode("latin-1")
    term, history = args.take_int(), args.take().decode("latin-1")
    number, slot = args.take_int(), args.take_int()
    edges = [args.take_int() for _ in range(args.remaining)]
    if len(edges) % 2:
        raise CommandError(SYNTAX)
    try:
        ranges = checked_ranges(zip(edges[::2], edges[1::2], strict=True))
    except ValueError as error:
        raise CommandError(f"ERR {error}") from None
    place = None if history == "?" else (history, number, slot)
    targets.sync(ctx.session, SlotRequest(move, node, term, ranges, place))
    return NO_REPLY


@cluster_command(
    "ACKSLOTS number:integer",
    "admin noscript loading dataless no_auth no_multi",
    known_after=_targets,
)
def cluster_ackslots(ctx: Context[PeersHost], args: Args) -> object:
    """An internal command between the nodes of a cluster.

    Sent after CLUSTER COPYSLOTS: the sender has everything up to the frame of this
    number."""
    _targets(ctx, args).acknowledge(ctx.session, args.take_int())
    return NO_REPLY


@cluster_command(
    "HANDSLOTS round:integer",
    "admin noscript loading dataless no_auth no_multi",
    known_after=_targets,
)
def cluster_handslots(ctx: Context[PeersHost], args: Args) -> object:
    """An internal command between the nodes of a cluster.

    Sent after CLUSTER COPYSLOTS: the sender asks for the hand-over of the slots.
    The round is the version of the record of the move; the answer names it."""
    _targets(ctx, args).ask(ctx.session, args.take_int())
    return NO_REPLY


@cluster_command(
    "RETURNSLOTS move:string node:string term:integer retries:integer",
    "admin noscript no_async_loading dataless no_auth no_multi",
    known_after=_peers_of_node,
)
def cluster_returnslots(ctx: Context[PeersHost], args: Args) -> object:
    """An internal command between the nodes of a cluster.

    Sent by the primary of a shard from which slots have left, if etcd may have been restored from
    a backup meanwhile: this node, which must be the primary of this term of the other shard, frees
    what it has copied of the slots. The reply OK means that no election of its shard loses that.
    It is an error if this shard may serve the slots."""
    peers = _peers_of_node(ctx, args)
    move, node = args.take().decode("latin-1"), args.take().decode("latin-1")
    peers.give_back(ReturnRequest(move, node, args.take_int(), args.take_int()))
    return OK

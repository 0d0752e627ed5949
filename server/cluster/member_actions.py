"""The orders of the state machine of a member, and the data that it needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, Protocol

from millstream.server.cluster.store.store import Change, Compare

if TYPE_CHECKING:
    from millstream.commands.admin.cluster_peers import LastFrame, Reason, ReturnRequest

Address = tuple[str, int]


class Purpose(Enum):
    """The reason for a transaction."""

    ANNOUNCE = auto()  # this node: its address
    SECRET = auto()  # with which nodes log in at each other
    JOIN = auto()  # this node becomes a member of a shard
    HOLD = auto()  # the lease of the primary
    STAND = auto()  # this member is a candidate
    CHOOSE = auto()  # the election is over: the new primary
    RESHAPE = auto()  # the members change
    MOVE = auto()  # a step of a move of slots
    GIVE_UP = auto()  # the election is over: there is none


class GetLease(NamedTuple):
    """Ask the store for a lease."""

    ttl_s: int


class KeepLease(NamedTuple):
    lease: int


class Write(NamedTuple):
    """Carry out a transaction. Its outcome goes to `written`, and the contents after it to
    `take`."""

    purpose: Purpose
    compares: Sequence[Compare]
    changes: Sequence[Change]


class ReadAgain(NamedTuple):
    """Read all contents of the store, for `take`."""


class AskPromise(NamedTuple):
    """Ask a member, perhaps this one, to acknowledge no term lower than this one. The answer goes
    to `promised`."""

    node: str
    address: Address
    term: int
    reason: Reason


class AskReturn(NamedTuple):
    """Ask the primary of another shard to give slots back. If it does, this goes to
    `Returns.answered`; `state` is for that."""

    address: Address
    asked: ReturnRequest
    shard: str
    state: object


class Lead(NamedTuple):
    """Be the primary of this term, or the same with other members."""

    term: int
    members: Sequence[str]
    durable: int


class Follow(NamedTuple):
    """Be a replica of this node."""

    node: str
    address: Address
    term: int
    durable: int


class Rest(NamedTuple):
    """Be neither, and confirm nothing. `term` is that of the shard in the store."""

    term: int


Action = GetLease | KeepLease | Write | ReadAgain | AskPromise | AskReturn | Lead | Follow | Rest


class Data(Protocol):
    """The data of this node, and its links to other members (`replication/terms`)."""

    @property
    def promised(self) -> int:
        """The lowest term that this node still acknowledges or leads; on its disk."""

    def standing(self) -> LastFrame | None:
        """The last frame on the disk; None while the data here is not known well enough."""

    def silence_ms(self) -> int | None:
        """The time since the followed primary was heard; None: there is no link to it."""

    def confirming_members(self) -> int:
        """The number of other members with a recent acknowledgement in the own term."""

    def acknowledged_frame(self, node: str) -> int:
        """The last frame that a replica, perhaps one that does not count, has on its disk in the
        own term; 0: none."""


def needs_disk(action: Action) -> bool:
    """True for orders that wait until the disk of this node has what the store had before. Those
    that only ask the store do not, nor do steps of moves: `may_keep_later` says what they need."""
    if isinstance(action, Write):
        return action.purpose is not Purpose.MOVE
    return not isinstance(action, GetLease | KeepLease | ReadAgain)

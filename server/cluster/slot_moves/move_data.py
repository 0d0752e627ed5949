"""The data of this server and its links to other shards, as the judge of moves needs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from millstream.storage.keyspace.slot_ranges import Ranges


class SourceNode(NamedTuple):
    """The primary of the shard that the slots leave, as the store has it."""

    node: str
    host: str
    port: int
    term: int


class Copied(NamedTuple):
    """The state of an import. `is_close`: all slots are copied, and little is missing. `failure`:
    the reason to end the move; "" if it continues. `obstacle`: why it waits, or ""."""

    is_close: bool
    failure: str
    obstacle: str = ""


class Left(NamedTuple):
    """Slots that have left, and the shard that gets them; "" if that is not known."""

    ranges: Ranges
    shard: str


class MoveData(Protocol):
    """All of it may be called again and again."""

    @property
    def imports(self) -> Mapping[str, Ranges]:
        """The imports in the data of this server, by the IDs of their moves."""

    @property
    def departures(self) -> Mapping[str, Left]:
        """The slots that have left, as the data of this server says."""

    @property
    def epoch(self) -> int:
        """The greatest one of the maps after which slots were served or freed, as the data says."""

    # The shard that gets the slots

    def may_begin(self, ranges: Ranges) -> bool:
        """False while older data of these slots is not gone."""

    def begin(self, move: str, ranges: Ranges, shard: str, source: SourceNode) -> None:
        """Copy the slots, and follow their changes. With another source: from that one."""

    def copied(self, move: str) -> Copied: ...
    def hand_over(self, move: str, revision: int) -> None:
        """Ask the source not to serve the slots any more, in the step with this revision."""

    def has_all(self, move: str, revision: int) -> bool:
        """The source has answered to this revision, and everything up to its answer is here, and
        confirmed."""

    def own(self, move: str, epoch: int) -> None:
        """Serve the slots of an import, as the map with this epoch says."""

    def is_settled(self, move: str) -> bool:
        """There is no import of this move, which is confirmed."""

    def keep(self, moves: Collection[str]) -> None:
        """End the links of all other moves."""

    # The shard whose slots leave

    def has_moved(self, move: str) -> None:
        """The map gives the slots to another shard."""

    def stay(self, move: str) -> None:
        """Serve the slots again."""

    def hide(self, move: str, slots: Collection[int], shard: str) -> bool:
        """This shard has these slots, and the data may lack LEAVE: record it for those that have
        keys which are not hidden. False if that is not possible yet."""

    # Both

    def drop(self, move: str, epoch: int) -> None:
        """Free the data of an import, or of slots that have left, as the map with this epoch
        says."""

"""The shards of a stream, and the progress in each one."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millstream.client.core.servers import ServerState
from millstream.client.core.token import Place
from millstream.client.core.words import text
from millstream.client.errors import InvalidStream
from millstream.client.events import Gap
from millstream.client.ids import BEGINNING, ID, PART_MAX, just_below
from millstream.client.records import Record

if TYPE_CHECKING:
    import redis
    import redis.asyncio


@dataclass(frozen=True)
class Shard:
    """A stream to follow: a key, and where it is.

    `client` is a connection to its server, the stream's own connection if None. `name` is the
    identity of the shard in records, tokens and the order; the key if None.

    >>> Shard("orders", name="orders:berlin")
    Shard(key='orders', client=None, name='orders:berlin')
    """

    key: str | bytes
    client: redis.Redis | redis.asyncio.Redis | None = None
    name: str | None = None


@dataclass(eq=False, slots=True)
class ShardState:
    """A shard that is read, or that waits until its parents have been read.

    Every entry up to `place` was handed out. Every entry up to `fetched` was handed out or is in
    `buffer`. No entry that was not fetched has, or will get, an ID up to `fetched`.
    """

    name: str
    key: str | bytes
    server: ServerState
    place: ID = BEGINNING
    anchor: ID = BEGINNING
    """The place without the watermarks after it: nothing was there between both. It is where the
    shard began, the last record that was handed out before `last`, or the end of a gap."""
    last: Record[Any] | None = None
    """A record that was handed out after `place` was set; see `note_place`."""
    fetched: ID = BEGINNING
    incarnation: int | None = None
    place_incarnation: int | None = None
    fresh: bool = False
    ended: bool = False
    """Sealed, settled and fetched to the end: `fetched` is the final ID."""
    children: tuple[Shard, ...] | None = None
    """The shards after this one, known soon after `ended`."""
    final: ID | None = None
    """The final ID, once it is known that the shard is sealed."""
    named_parents: tuple[str, ...] = ()
    """The shards before this one, as its server names them."""
    floor: ID = BEGINNING
    """Up to this ID the shards before this one were read: nothing comes here up to it."""
    missing_since_s: float | None = None
    until: ID | None = None
    """The last ID that the stream wants of this shard; None for all."""
    current_s: float = float("-inf")
    """The last time at which everything that the shard had was fetched, as far as is known."""

    buffer: deque[Record[Any]] = field(default_factory=deque)
    gaps: list[Gap] = field(default_factory=list)
    """Losses that are not reported yet: before the first record in the buffer."""
    parents: set[str] = field(default_factory=set)
    """The parents in this stream that were not read to their end yet."""

    @classmethod
    def at(cls, shard: Shard, server: ServerState, place: Place) -> ShardState:
        return cls(
            name=shard_name(shard),
            key=shard.key,
            server=server,
            place=place.at,
            anchor=place.at,
            fetched=place.at,
            incarnation=place.incarnation,
            place_incarnation=place.incarnation,
            fresh=place.fresh,
        )

    @property
    def complete(self) -> bool:
        """True if everything up to the end of the stream was fetched."""
        return self.until is not None and self.fetched >= self.until

    @property
    def to_fetch(self) -> bool:
        """True if its server has to be asked for records."""
        return not (self.buffer or self.ended or self.complete)

    def shard(self) -> Shard:
        client: Any = self.server.client
        return Shard(self.key, client, self.name)

    def note_place(self) -> ID:
        """The place, with the record that was handed out last. The ID of a record is not read for
        each record of a stream of one shard, but when it is needed."""
        if self.last is not None:
            self.place = self.anchor = self.last.id
            self.place_incarnation = self.incarnation
            self.last = None
        return self.place

    def reach(self) -> None:
        """Everything that was fetched was handed out."""
        self.note_place()
        if not self.gaps:
            self.place = self.fetched
            self.place_incarnation = self.incarnation

    def lose(self, resumed: ID) -> None:
        """Entries were removed before they were fetched; reading continues at `resumed`."""
        own = next((gap for gap in self.gaps if gap.shard == self.name), None)
        after = self.fetched if own is None else own.after
        gaps = [*(gap for gap in self.gaps if gap is not own), Gap(self.name, after, resumed)]
        self.gaps, self.fetched = gaps, resumed  # in one line: a signal handler may raise

    def found(self) -> Place:
        """The shard's place for a token."""
        self.note_place()
        end = self.fetched if self.ended else self.final
        if end is None or self.children is None:
            return Place(self.place, self.place_incarnation, self.fresh)
        names = tuple(map(shard_name, self.children))
        return Place(self.place, self.place_incarnation, self.fresh, end, names)

    def current_since_s(self, since: ID) -> float:
        """Since when entries of this shard may be there that were not handed out. `since` is the
        place of the time that the stream began at."""
        if self.buffer or self.gaps or self.ended:
            return float("-inf")
        # Just below an ID that is the first of its millisecond: a reservation holds entries back.
        held = self.fetched.seq == PART_MAX and self.fetched != since
        return float("-inf") if held else self.current_s

    @property
    def settled_up_to(self) -> ID:
        """Up to this ID everything was handed out, and nothing will come."""
        if self.gaps:
            return max(self.floor, self.place)
        if self.buffer:
            return max(self.floor, self.note_place(), just_below(self.buffer[0].id))
        return max(self.floor, self.fetched)


def shard_name(shard: Shard) -> str:
    return text(shard.key) if shard.name is None else shard.name


def parse_shards(shards: Any) -> list[Shard]:
    """A key, a Shard, or several of them; InvalidStream for everything else."""
    if isinstance(shards, (str, bytes, Shard)):
        shards = [shards]
    if not isinstance(shards, Iterable):
        raise InvalidStream(f"{shards!r} are not shards: use a key, or a list of keys and Shards")
    found = [parse_shard(shard) for shard in shards]
    if not found:
        raise InvalidStream("a stream needs at least one shard")
    for name, count in Counter(map(shard_name, found)).items():
        if count > 1:
            raise InvalidStream(
                f"two shards have the name {name!r}: give a Shard a name of its own"
            )
    return found


def parse_shard(shard: Any) -> Shard:
    if isinstance(shard, (str, bytes)):
        shard = Shard(shard)
    if not isinstance(shard, Shard):
        raise InvalidStream(f"{shard!r} is not a shard: use a key or a Shard")
    if not isinstance(shard.key, (str, bytes)):
        raise InvalidStream(f"the key {shard.key!r} of a shard is not text or bytes")
    if shard.name is not None and not isinstance(shard.name, str):
        raise InvalidStream(f"the name {shard.name!r} of a shard is not text")
    if shard.name == "":
        raise InvalidStream("the name of a shard must not be empty")
    return shard

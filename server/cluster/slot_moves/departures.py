"""The slots that leave this shard, at its primary: a feed for each move, and the hand-over.

The target asks for the hand-over when it has nearly everything. LEAVE is recorded when the judge of
this node allows that, and at most MISSING_MAX bytes are missing. From then on no request of the
slots runs here: those that come wait (`execution/slot_parking`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from millstream.commands.admin.cluster_peers import SlotRequest
from millstream.errors import CommandError
from millstream.server.cluster.slot_moves.slot_data import SlotData
from millstream.server.cluster.slot_moves.slot_feed import FeedParts, SlotFeed
from millstream.server.cluster.slot_moves.slot_records import Left, Place
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine
from millstream.server.execution.executor import Executor
from millstream.server.monitor.histogram import Histogram
from millstream.server.replication.feeds import Feeds
from millstream.server.replication.history import Histories, has_frame
from millstream.server.replication.resync import Resync
from millstream.server.replication.terms import Terms
from millstream.storage.keyspace.slot_ranges import Ranges

log = logging.getLogger("millstream.cluster")

MISSING_MAX = 1 << 20
LOOK_S = 0.005
FEEDS_MAX = 16


class LinkParts(NamedTuple):
    """The parts of this server that the links of moves use. `safe_seq()` is the last frame that no
    election loses."""

    machine: Machine
    persistence: Persistence
    executor: Executor
    feeds: Feeds
    histories: Histories
    resync: Resync
    terms: Terms
    data: SlotData
    safe_seq: Callable[[], int]


class LeftInTerm(NamedTuple):
    """LEAVE was recorded in this term: in this frame, at this time of the steady clock."""

    number: int
    at_ns: int


class Departures:
    """`may_copy(move)` is the reason to refuse a copy, or "", and `may_leave(move, round)` says
    whether the map still waits for the hand-over that was asked for in this round;
    `target_of(move)` is the shard that gets the slots: the judge sets all three. `pauses` are the
    times from LEAVE to the end of a hand-over, in nanoseconds."""

    def __init__(self, parts: LinkParts) -> None:
        self.may_copy: Callable[[str], str] = lambda move: ""
        self.may_leave: Callable[[str, int], bool] = lambda move, asked_round: False
        self.target_of: Callable[[str], str] = lambda move: ""
        self.sent_bytes = 0
        self.pauses = Histogram()
        self._parts = parts
        self._by_client: dict[int, SlotFeed] = {}
        self._left: dict[str, LeftInTerm] = {}
        self._term = 0
        self._has_timer = False

    # Requests of targets

    def sync(self, client: Any, asked: SlotRequest) -> None:
        """COPYSLOTS. CommandError if this server refuses."""
        parts = self._parts
        if client.feed is not None:
            raise CommandError("ERR this connection is already a link")
        parts.terms.check_member(asked.node, asked.node, asked.term)
        refusal = self.may_copy(asked.move)
        if refusal:
            raise CommandError(f"ERR {refusal}")
        self.end(asked.move, "the target has connected again")
        if len(self._by_client) >= FEEDS_MAX:
            raise CommandError(f"ERR {FEEDS_MAX} moves are under way from here already")
        parts.histories.require_line()
        parts.feeds.keep_backlog()
        parts.persistence.snapshots.needs_frame = self._needs_frame
        feed_parts = FeedParts(
            parts.machine, parts.persistence.commits, parts.feeds.source, parts.data, parts.safe_seq
        )
        feed = SlotFeed(feed_parts, client, asked.move, asked.ranges, self._remove)
        client.feed = self._by_client[client.id] = feed
        if asked.term != self._term:
            self._term = asked.term
            self._left.clear()  # another primary may have recorded other frames meanwhile
        place = None if asked.place is None else Place(*asked.place)
        parts.machine.scheduler.call_soon(self._begin, feed, place)
        self._look_later()

    def _begin(self, feed: SlotFeed, place: Place | None) -> None:
        parts = self._parts
        parts.persistence.commits.flush_tick()
        if place is not None and not self._can_continue(place):
            place = None
        log.info(
            "move %s: %s", feed.move, "the copy begins" if place is None else "the copy continues"
        )
        feed.begin(parts.histories.newest, place)

    def _needs_frame(self, number: int) -> bool:
        return any(feed.needs_frame(number) for feed in self._by_client.values())

    def _can_continue(self, place: Place) -> bool:
        parts = self._parts
        last_seq = parts.persistence.commits.last_seq
        is_here = place.number >= parts.resync.oldest_needed() or place.number == last_seq
        lines = parts.histories.lines
        return is_here and has_frame(lines, last_seq, place.history, place.number)

    def acknowledge(self, client: Any, number: int) -> None:
        """ACKSLOTS. Clients other than targets are ignored."""
        feed = self._by_client.get(client.id)
        if feed is not None:
            feed.acknowledge(number)

    def ask(self, client: Any, asked_round: int) -> None:
        """HANDSLOTS: the target asks for the hand-over."""
        feed = self._by_client.get(client.id)
        if feed is not None:
            feed.asked_round = max(feed.asked_round, asked_round)
            self._hand_over(feed)

    def forget(self, client: Any) -> None:
        """A client has disconnected."""
        if client.id in self._by_client:
            self._remove(client)

    def _remove(self, client: Any) -> None:
        feed = self._by_client.pop(client.id, None)
        if feed is not None:
            client.feed = None
            self.sent_bytes += feed.sent_bytes
            feed.close()

    @property
    def feeds(self) -> Collection[SlotFeed]:
        """The links to the other shards."""
        return self._by_client.values()

    @property
    def total_sent_bytes(self) -> int:
        return self.sent_bytes + sum(feed.sent_bytes for feed in self._by_client.values())

    # Time

    def _look_later(self) -> None:
        if not self._has_timer:
            self._has_timer = True
            self._parts.machine.scheduler.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._has_timer = False
        terms = self._parts.terms
        for feed in list(self._by_client.values()):
            if not terms.is_leading or terms.term != self._term:
                feed.drop("this server is not the primary of its shard any more")
                continue
            feed.look()
            if feed.asked_round:
                self._hand_over(feed)
        if self._by_client:
            self._look_later()

    @property
    def awaits_safety(self) -> bool:
        """True if a hand-over waits until its frame is safe."""
        return any(feed.is_leaving for feed in self._by_client.values())

    def look_at_hand_overs(self) -> None:
        """More frames are safe."""
        for feed in list(self._by_client.values()):
            if feed.is_leaving:
                feed.pump()

    # The hand-over

    def _hand_over(self, feed: SlotFeed) -> None:
        """Record LEAVE, if the target has asked and everything is ready for that."""
        parts, move = self._parts, feed.move
        missing = feed.missing_bytes
        if not parts.terms.may_confirm() or not self.may_leave(move, feed.asked_round):
            return
        if move not in parts.data.departures:
            if not feed.has_all_slots or missing is None or missing > MISSING_MAX:
                return
            try:
                self._leave(feed)
            except CommandError as error:  # the disk is full: tried again
                feed.note_obstacle(error.message)
                return
        left = self._left.get(move)
        if left is not None:  # None after a failover: the hand-over is taken back
            feed.say_left(Left(left.number, feed.asked_round))

    def _leave(self, feed: SlotFeed) -> None:
        """Stop serving the slots: record LEAVE in a frame of its own. CommandError if there is no
        space for it."""
        parts, move = self._parts, feed.move
        self._record_left(move, feed.ranges, self.target_of(move))
        last_seq = parts.persistence.commits.last_seq
        self._left[move] = LeftInTerm(last_seq, parts.executor.read_ns())
        log.info("move %s: the slots have left with frame %d", move, last_seq)

    def _record_left(self, move: str, ranges: Ranges, shard: str) -> None:
        commits = self._parts.persistence.commits
        commits.flush_tick()
        self._parts.data.note_left(move, ranges, shard)
        commits.flush_tick()

    # What the judge orders

    def has_left(self, move: str) -> bool:
        """True if the data here has LEAVE."""
        return move in self._parts.data.departures

    def hide(self, move: str, slots: Collection[int], shard: str) -> None:
        """This shard has these slots, and LEAVE was lost: hide the keys that are here."""
        ranges = self._parts.data.shown_of(slots)
        if ranges:
            self._record_left(move, ranges, shard)
            log.warning(
                "move %s: a failover has lost that the slots have left: they are hidden", move
            )

    def note_moved(self, move: str) -> None:
        """The map names the other shard now."""
        left = self._left.pop(move, None)
        if left is not None:
            self.pauses.add(self._parts.executor.read_ns() - left.at_ns)
        self.end(move, "the slots belong to the other shard")

    def stay(self, move: str) -> None:
        """Serve the slots again. Only after the map cannot name the other shard any more. The
        target has to connect again: what it was told does not count."""
        self._left.pop(move, None)
        self.end(move, "the hand-over was taken back")
        if self.has_left(move):
            self._parts.data.note_stay(move)
            self._parts.persistence.commits.flush_tick()

    def drop(self, move: str, epoch: int) -> None:
        """Free the data of slots that belong to the other shard."""
        self.note_moved(move)
        if self.has_left(move):
            self._parts.data.note_dropped(move, epoch)
            self._parts.persistence.commits.flush_tick()

    def end_all(self, reason: str) -> None:
        """End all links."""
        for feed in list(self._by_client.values()):
            feed.drop(reason)

    def end(self, move: str, reason: str) -> None:
        """End the link of a move."""
        for feed in list(self._by_client.values()):
            if feed.move == move:
                feed.drop(reason)

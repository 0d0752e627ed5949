"""All databases, and the state that they share.

A timer of the server deletes expired keys. While effects are applied at start, no key expires: the
journal contains the expiries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from millstream.storage.keyspace.database import Database
from millstream.storage.keyspace.dead_letter_totals import DeadLetterTotals
from millstream.storage.keyspace.keyspace_core import KeyspaceCore
from millstream.storage.keyspace.retention_schedule import RetentionSchedule
from millstream.storage.keyspace.slot_states import EXPIRY, SlotStates
from millstream.storage.streams.idempotence import DURATION_S, MAXSIZE

Line = tuple[str, int]
"""A line of history: its ID, 40 hexadecimal digits, and the number of its first frame."""


class Source(NamedTuple):
    """The position of the data in the stream of a Redis: its replication ID, the offset in bytes,
    and the database that is selected there."""

    replid: str
    offset: int
    database: int


# A keyspace knows this number of lines, the newest ones.
HISTORIES_MAX = 16
# Default maximum of producers per stream.
PRODUCERS_MAX = 100_000
# Default limits of a stream: bytes of held entries and open reservations, and number of writers.
HELD_MAX_BYTES = 256 << 20
RESERVATIONS_MAX = 10_000
WRITERS_MAX = 1000
# Default limits of a stream: number and bytes of scheduled entries.
SCHEDULED_MAX = 1_000_000
SCHEDULED_MAX_BYTES = 256 << 20
# Scheduled entries are appended in the millisecond in which they are due.
FIRING_PAGE_MS = 1


class Keyspace(KeyspaceCore):
    """All databases and their common state.

    `dirty` counts changes. `ready` and `timer_requests` collect work for the server: keys whose
    waiting readers must be retried, and the times at which groups have automatic changes.
    `node_entries` and `node_bytes` are the limits of a node.

    Readers have the promise that no entry up to `promised_ms` will be added to the streams that
    they follow; the journal has `recorded_promise_ms`, which is at or after it. `has_ordering`
    means that a stream has, or had, features that only TRESERVE and similar commands use.
    `expiry_log_ms` is the time from which an expired lease is logged again, and `missed_log_ms` the
    same for entries that were trimmed before a group read them. `histories` has the lines of
    history to which the frames of the data belong, the oldest first; empty if unknown. `line_terms`
    has the terms of those lines that a primary of a shard has begun. `source` is
    the position in the stream of a Redis if the data came from one, and `dropped_strings` the
    strings of that Redis, by database and key, whose values are not known here.

    `now_ms` is the time for the expiry of keys, `steady_ms` the time from which restored groups
    count, and `newest_steady_ms` the latest time of that clock in the loaded data. While `expiring`
    is false (at start), no key expires. While `may_delete` is false, expired keys do not exist for
    commands, but are not deleted. While `touching` is false, commands do not count as a use of a
    key. `on_expired(db_index, key)` is called for each key that expired. `expiry_noted` means that
    a key got an expiry, or that `retention_schedule` got a stream to check for trimming, or
    `firing_schedule` one with scheduled entries. `deferred` has the (db, key, name) of groups whose
    time came while deletions were not allowed. `clustered` is true in a node of a cluster, which
    uses only database 0. While `names_deleted` is true, effects name each entry that is deleted: a
    Redis that follows has no command that deletes a range. `slot_states` has the cluster slots that
    move between shards, and `hidden_slots` those whose keys are hidden; `on_slots_hidden` is
    called after a change of the latter.
    """

    databases: list[Database]

    def __init__(
        self,
        databases: int = 16,
        node_entries: int = 100,
        node_bytes: int = 4096,
        *,
        clustered: bool = False,
    ) -> None:
        super().__init__(
            node_entries, node_bytes, RetentionSchedule(), RetentionSchedule(page_ms=FIRING_PAGE_MS)
        )
        self.clustered = clustered
        self.names_deleted = False
        self.idmp_duration_s = DURATION_S
        self.idmp_maxsize = MAXSIZE
        self.producers_max = PRODUCERS_MAX
        self.held_max_bytes = HELD_MAX_BYTES
        self.reservations_max = RESERVATIONS_MAX
        self.writers_max = WRITERS_MAX
        self.scheduled_max = SCHEDULED_MAX
        self.scheduled_max_bytes = SCHEDULED_MAX_BYTES
        self.histories: tuple[Line, ...] = ()
        self.line_terms: dict[str, int] = {}
        self.source: Source | None = None
        self.dropped_strings: set[tuple[int, bytes]] = set()
        self.dead_letters = DeadLetterTotals()
        self.walks = []
        self.hidden_slots: frozenset[int] = frozenset()
        self.on_slots_hidden: Callable[[], None] | None = None
        self.slot_states = SlotStates(self)
        self.databases = [Database(self, i) for i in range(databases)]

    def next_expiry_ms(self) -> int | None:
        """The earliest expiry of a key; None when no key will expire automatically."""
        if not self.active_expiry:
            return None
        found = (db.due.earliest() for db in self.databases if db.expiries)
        return min((earliest[0] for earliest in found if earliest), default=None)

    def expire_due(self, limit: int) -> int:
        """Delete expired keys, at most `limit`; return their number."""
        dropped = 0
        if not (self.active_expiry and self.may_delete and self.expiring):
            return 0
        for db in self.databases:
            while dropped < limit and (earliest := db.due.earliest()):
                at_ms, key = earliest
                if at_ms > self.now_ms:
                    break
                if self.hidden_slots and self.slot_states.set_aside(EXPIRY, db.index, key):
                    db.due.pass_over()
                    continue
                db.drop_expired(key)
                dropped += 1
        return dropped

    def mark_ready(self, db_index: int, key: bytes) -> None:
        """Mark a key ready: blocked readers of this key may find something now."""
        self.databases[db_index].mark_ready(key)

    def begin_again(self) -> None:
        """Empty all databases, and forget what was noted about their keys: other data follows."""
        self.slot_states.clear()
        for db in self.databases:
            db.clear()
        self.ready = []
        self.timer_requests = []
        self.deferred = []
        self.dead_letters.places.clear()
        self.settling = []
        self.histories = ()
        self.line_terms = {}
        self.source = None
        self.dropped_strings = set()

    def begin_history(self, name: str, first_seq: int, term: int = 0) -> None:
        """The frames from this number on belong to another line of history, with the term of the
        primary that begins it (0: none). A server that follows a Redis records its position
        again."""
        self.source = None
        before = [line for line in self.histories if line[1] < first_seq]
        self.histories = (*before, (name, first_seq))[-HISTORIES_MAX:]
        if term or self.line_terms:
            terms = {**self.line_terms, name: term}
            self.line_terms = {
                line: terms[line] for line, _ in self.histories if terms.get(line, 0)
            }

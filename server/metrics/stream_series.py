"""The samples of streams, groups and consumers, built in small steps while commands run.

Which streams are shown depends only on the keys: of those that match `metrics-streams`, the first
`metrics-streams-max` in the order of database and key. The keys of a large keyspace are walked for
this, so the choice is kept for a multiple of the time that it took.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from millstream.commands.engine.group_replies import StreamEnds, group_figures
from millstream.commands.xstream.xinfo import COUNTED_NODES
from millstream.glob import matcher
from millstream.server.metrics.server_series import Lines, Sources
from millstream.server.metrics.text import label
from millstream.storage.groups.dead_entries import dead_count
from millstream.storage.groups.group import Group
from millstream.storage.groups.shared_groups import shared_members
from millstream.storage.keyspace.database import Database
from millstream.storage.keyspace.key_walk import KeyIterator
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.log.trim_nodes import node_count, radix_tree_nodes
from millstream.storage.streams.retention import bytes_of
from millstream.storage.streams.schedule import Schedule
from millstream.storage.streams.stream import Stream

Place = tuple[int, bytes]

KEYS_AT_ONCE = 300
GROUPS_AT_ONCE = 20
CONSUMERS_AT_ONCE = 100
GROUPS_FACTOR = 10  # groups shown for each stream that may be shown, all together
CONSUMERS_FACTOR = 10  # the same for consumers and groups
KEPT_FACTOR = 20  # walking the keys takes at most a twentieth of the time


@dataclass(slots=True)
class Choice:
    """The streams that are shown, in order, and how many match but are left out."""

    places: list[Place] = field(default_factory=list)
    left_out: int = 0


class _Reversed:
    """A place in reverse order, for a heap whose first element is the largest."""

    __slots__ = ("place",)

    def __init__(self, place: Place) -> None:
        self.place = place

    def __lt__(self, other: _Reversed) -> bool:
        return self.place > other.place


def choose(keyspace: Keyspace, patterns: Sequence[str], most: int) -> Iterator[Choice | None]:
    """Choose the streams in steps; the last one is the choice, the others are None."""
    tests = [matcher(pattern.encode("utf-8", "surrogateescape")) for pattern in patterns]
    if "*" in patterns:
        tests = [lambda key: True]
    heap: list[_Reversed] = []
    matching = 0
    for db in keyspace.databases if tests else []:
        for keys in _walk(keyspace, db):
            for key in keys:
                if not isinstance(db.table.get(key), Stream) or not any(t(key) for t in tests):
                    continue
                if keyspace.hidden_slots and keyspace.slot_states.hides(key):
                    continue
                matching += 1
                place = (db.index, key)
                if len(heap) < most:
                    heapq.heappush(heap, _Reversed(place))
                elif most and place < heap[0].place:
                    heapq.heapreplace(heap, _Reversed(place))
            yield None
    yield Choice(sorted(one.place for one in heap), matching - len(heap))


def _walk(keyspace: Keyspace, db: Database) -> Iterator[list[bytes]]:
    if not len(db):
        return
    if len(db) <= KEYS_AT_ONCE * 10:  # a copy is made at once, which is faster than all slots
        keys = list(db.table)
        for start in range(0, len(keys), KEYS_AT_ONCE):
            yield keys[start : start + KEYS_AT_ONCE]
        return
    walk = KeyIterator(keyspace, db)
    try:
        while (found := walk.step(KEYS_AT_ONCE)) is not None:
            yield found
    finally:
        walk.close()


class StreamSeries:
    """Adds the samples of streams, groups and consumers to a page."""

    def __init__(self, sources: Sources, clock: Callable[[], float] = time.perf_counter) -> None:
        self._sources = sources
        self._clock = clock
        self._choice = Choice()
        self._chosen_for: tuple[tuple[str, ...], int] | None = None
        self._kept_until = 0.0
        self._waiting = WaitingSince()

    def lines(self, lines: Lines) -> Iterator[None]:
        """Add the samples to the lists in `lines`, in steps of a fraction of a millisecond."""
        sources, config = self._sources, self._sources.config
        if sources.persistence.loading:
            return
        yield from self._choose()
        counts = _Left(config.metrics.streams_max * GROUPS_FACTOR)
        self._waiting.begin_page()
        write, write_group = _stream_writer(lines), _group_writer(lines, self._waiting)
        newest_ms = 0
        for index, key in self._choice.places:
            db = sources.executor.keyspace.databases[index]
            stream = db.table.get(key)
            if not isinstance(stream, Stream) or (db.expiries and db.has_expired(key)):
                continue  # it has gone since the choice
            named = f'db="db{index}",stream="{label(key)}"'
            write(f"{{{named}}}", stream, sources.steady_ms())
            if stream.schedule is not None:
                _scheduled(lines, f"{{{named}}}", stream.schedule, sources.now_ms())
            newest_ms = max(newest_ms, stream.last_ms)
            if stream.groups:
                yield from self._groups(lines, write_group, named, stream, counts)
            yield
        lead_s = max(0, newest_ms - sources.now_ms()) / 1000
        lines["millstream_id_lead_seconds"].append(f"millstream_id_lead_seconds {lead_s}\n")
        for what, count in (
            ("streams", self._choice.left_out),
            ("groups", counts.groups_left_out),
            ("consumers", counts.consumers_left_out),
        ):
            name = f"millstream_metrics_{what}_left_out"
            lines[name].append(f"{name} {count}\n")

    def _choose(self) -> Iterator[None]:
        config = self._sources.config
        wanted = (config.metrics.streams, config.metrics.streams_max)
        begun = self._clock()
        if wanted == self._chosen_for and begun < self._kept_until:
            return
        used = 0.0
        for found in choose(self._sources.executor.keyspace, *wanted):
            used += self._clock() - begun
            if found is not None:
                self._choice = found
            yield
            begun = self._clock()
        self._chosen_for = wanted
        self._kept_until = begun + used * KEPT_FACTOR

    def _groups(
        self,
        lines: Lines,
        write: Callable[[str, Figures, int, int], None],
        named: str,
        stream: Stream,
        counts: _Left,
    ) -> Iterator[None]:
        sources, shows_consumers = self._sources, self._sources.config.metrics.consumers
        groups = list(stream.groups.values())
        for start in range(0, len(groups), GROUPS_AT_ONCE):
            some = groups[start : start + GROUPS_AT_ONCE]
            if start:
                yield
            now_ms, steady_ms = sources.now_ms(), sources.steady_ms()
            ends = StreamEnds(stream)
            shown = []  # before any other command runs: `ends` is of this moment
            for group in some:
                if group.is_over(steady_ms):
                    continue
                if not counts.groups:
                    counts.groups_left_out += 1
                    continue
                counts.groups -= 1
                who = f'{{{named},group="{label(group.name)}"}}'
                write(who, group_figures(group, stream, ends), now_ms, steady_ms)
                if group.rules is not None:
                    _write_rules(lines, who, group, steady_ms)
                shown.append((who[:-1], group))
            for named_group, group in shown if shows_consumers else []:
                yield from _consumers(lines, named_group, group, steady_ms, counts)


def _scheduled(lines: Lines, who: str, schedule: Schedule, now_ms: int) -> None:
    """Add the samples of the scheduled entries of a stream."""
    overdue_s = max(0, now_ms - schedule.next_due_ms) / 1000
    _put(
        lines,
        who,
        millstream_stream_scheduled=len(schedule),
        millstream_stream_scheduled_overdue_seconds=overdue_s,
    )


def _put(lines: Lines, who: str, **samples: float) -> None:
    """Add samples of metrics by name."""
    for name, value in samples.items():
        lines[name].append(f"{name}{who} {value}\n")


class _Left:
    """The numbers of groups and consumers that may still be shown, and that were left out."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.groups_left_out = 0
        self.consumers = groups * CONSUMERS_FACTOR
        self.consumers_left_out = 0


def _stream_writer(lines: Lines) -> Callable[[str, Stream, int], None]:
    """A function that adds the samples of a stream. The lists are looked up once: a page has tens
    of thousands of samples."""
    length = lines["redis_stream_length"].append
    keys = lines["redis_stream_radix_tree_keys"].append
    nodes = lines["redis_stream_radix_tree_nodes"].append
    last_id = lines["redis_stream_last_generated_id"].append
    deleted_id = lines["redis_stream_max_deleted_entry_id"].append
    groups = lines["redis_stream_groups"].append
    first_entry = lines["redis_stream_first_entry_id"].append
    last_entry = lines["redis_stream_last_entry_id"].append
    size = lines["millstream_stream_bytes"].append
    blocks = lines["millstream_stream_blocks"].append
    evicted = lines["millstream_stream_entries_evicted_total"].append
    deleted = lines["millstream_stream_entries_deleted_total"].append
    first_s = lines["millstream_stream_first_entry_timestamp_seconds"].append

    def write(who: str, stream: Stream, steady_ms: int) -> None:
        tree_nodes = radix_tree_nodes(stream, COUNTED_NODES)
        length(f"redis_stream_length{who} {stream.length}\n")
        keys(f"redis_stream_radix_tree_keys{who} {node_count(stream)}\n")
        nodes(f"redis_stream_radix_tree_nodes{who} {tree_nodes}\n")
        last_id(f"redis_stream_last_generated_id{who} {stream.last_ms}\n")
        deleted_id(f"redis_stream_max_deleted_entry_id{who} {stream.max_deleted_ms}\n")
        groups(f"redis_stream_groups{who} {stream.live_group_count(steady_ms)}\n")
        size(f"millstream_stream_bytes{who} {bytes_of(stream)}\n")
        blocks(f"millstream_stream_blocks{who} {stream.block_count}\n")
        evicted(f"millstream_stream_entries_evicted_total{who} {stream.entries_evicted}\n")
        deleted(f"millstream_stream_entries_deleted_total{who} {stream.entries_deleted}\n")
        first, last = stream.first_id, stream.newest_id
        if first is not None and last is not None:
            ms = first[0]
            first_entry(f"redis_stream_first_entry_id{who} {ms}\n")
            last_entry(f"redis_stream_last_entry_id{who} {last[0]}\n")
            first_s(f"millstream_stream_first_entry_timestamp_seconds{who} {ms / 1000}\n")

    return write


Figures = tuple[int, int, int, int, int, int, int, int, int]


class WaitingSince:
    """Since when the oldest entries of groups have been seen, where the time in their ID is ahead
    of the clock: their age is counted from then on."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[int, int], int]] = {}
        self._of_this_page: dict[str, tuple[tuple[int, int], int]] = {}

    def begin_page(self) -> None:
        self._seen, self._of_this_page = self._of_this_page, {}

    def age_ms(self, who: str, entry_id: tuple[int, int], now_ms: int, steady_ms: int) -> int:
        """The age of the oldest entry of a group by its ID. If that is, or was, ahead of
        the clock, the age is at least the time since a page first showed it."""
        by_id_ms = now_ms - entry_id[0]
        seen_id, since_ms = self._seen.get(who, (None, steady_ms))
        if seen_id != entry_id:
            if by_id_ms >= 0:
                return by_id_ms
            since_ms = steady_ms
        self._of_this_page[who] = entry_id, since_ms
        return max(by_id_ms, steady_ms - since_ms)


def _group_writer(lines: Lines, waiting: WaitingSince) -> Callable[[str, Figures, int, int], None]:
    """The same for a group."""
    consumers = lines["redis_stream_group_consumers"].append
    pending = lines["redis_stream_group_messages_pending"].append
    offset = lines["redis_stream_group_last_delivered_id"].append
    read = lines["redis_stream_group_entries_read"].append
    lag = lines["redis_stream_group_lag"].append
    age = lines["millstream_group_oldest_unacked_age_seconds"].append
    blocked = lines["millstream_group_blocked_readers"].append
    missed = lines["millstream_group_entries_missed_total"].append
    lost = lines["millstream_group_lost_total"].append

    def write(who: str, figures: Figures, now_ms: int, steady_ms: int) -> None:
        members, entries, offset_ms, entries_read, unread, oldest_ms, readers, *gone = figures
        missed_entries, lost_entries, seq = gone
        age_s = 0.0
        if oldest_ms >= 0:
            age_s = waiting.age_ms(who, (oldest_ms, seq), now_ms, steady_ms) / 1000
        consumers(f"redis_stream_group_consumers{who} {members}\n")
        pending(f"redis_stream_group_messages_pending{who} {entries}\n")
        offset(f"redis_stream_group_last_delivered_id{who} {offset_ms}\n")
        age(f"millstream_group_oldest_unacked_age_seconds{who} {age_s}\n")
        blocked(f"millstream_group_blocked_readers{who} {readers}\n")
        missed(f"millstream_group_entries_missed_total{who} {missed_entries}\n")
        lost(f"millstream_group_lost_total{who} {lost_entries}\n")
        if entries_read >= 0:
            read(f"redis_stream_group_entries_read{who} {entries_read}\n")
        if unread >= 0:
            lag(f"redis_stream_group_lag{who} {unread}\n")

    return write


def _write_rules(lines: Lines, who: str, group: Group, steady_ms: int) -> None:
    """The samples of a group with rules."""
    assert group.rules is not None
    dead = dead_count(group.pending)
    _put(
        lines,
        who,
        millstream_group_in_flight=group.in_flight,
        millstream_group_waiting=group.pending.waiting_count - dead,
        millstream_group_dead=dead,
        millstream_group_parked=group.parked,
        millstream_group_paused=int(group.rules.paused_until_ms > steady_ms),
    )
    name = "millstream_group_dead_letters_total"
    for reason, count in group.dead_letters.items():
        lines[name].append(f'{name}{who[:-1]},reason="{label(reason)}"}} {count}\n')


def _consumers(
    lines: Lines, named: str, group: Group, steady_ms: int, counts: _Left
) -> Iterator[None]:
    members = shared_members(group)
    for number, name in enumerate(members.names):
        if name is None:
            continue
        if not counts.consumers:
            counts.consumers_left_out += 1
            continue
        counts.consumers -= 1
        seen_ms, _, pending = members.row(number)
        who = f'{named},consumer="{label(name)}"}}'
        idle_s = max(0, steady_ms - seen_ms) / 1000
        metric = "redis_stream_group_consumer_messages_pending"
        lines[metric].append(f"{metric}{who} {pending}\n")
        metric = "redis_stream_group_consumer_idle_seconds"
        lines[metric].append(f"{metric}{who} {idle_s}\n")
        if counts.consumers % CONSUMERS_AT_ONCE == 0:  # of this group and earlier ones
            yield

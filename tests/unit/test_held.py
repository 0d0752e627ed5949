"""Reservations: settled entries become visible in the order of IDs, and no reader misses one.

The model knows for every ID what became of it. Readers of three kinds follow the stream all the
time: TREAD and TMREAD must get every completed entry once and in order, TPEEK every one once.
"""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.effort import examples
from tests.support.in_process import NOW_MS, InProcessClient, InProcessServer
from tests.support.storage_access import check_held, check_stream, held_entries

from millstream.storage.capture.ordering_snapshot import ordering_meta
from millstream.storage.capture.restored_times import restart_leases
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.reservations import held_snapshot
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream, load_stream

Id = tuple[int, int]


def parsed(text: Any) -> Id:
    ms, seq = text.split(b".")
    return int(ms), int(seq)


def printed(entry_id: Id) -> str:
    return "{}.{}".format(*entry_id)


def fields(reply: Any) -> dict[bytes, Any]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def is_replayed(in_process: InProcessServer, key: bytes = b"s") -> None:
    """The journal leads to the same stream, with everything that it holds."""
    lived = in_process.keyspace.databases[0].stream(key)
    again = in_process.replayed().databases[0]
    replayed = again.stream(key)
    assert lived is not None
    assert replayed is not None
    assert forms(replayed) == forms(lived)
    assert again.reservations == in_process.keyspace.databases[0].reservations


def forms(stream: Stream) -> tuple[Any, ...]:
    """All of a stream, whichever segments it has put together into runs."""
    held = stream.held
    rest = () if held is None else (held_entries(held), held.writers.rows(), held.size_bytes)
    return dump_stream(stream)[0], stream.range(), stream.restrictions, *rest


# ---------------------------------------------------------------- the table of the design


def test_positions_step_by_step(in_process: InProcessServer, player: InProcessClient) -> None:
    """Synapse's table: append, reserve and complete in any order; the position after each step."""

    def step(do: str, position: int) -> None:
        player.call(do)
        assert player.call("TPOSITION s") == b"%d.0" % ids[position]
        in_process.wait_ms(1)

    start = in_process.wall_ms
    ids = {n: start + n - 1 for n in range(1, 7)}
    step("TAPPEND s f 1", 1)
    step("TRESERVE s w", 1)
    step("TRESERVE s w", 1)
    step(f"TCOMPLETE s w {ids[3]} f 3", 1)
    in_process.wall_ms = ids[4]
    assert player.call(f"TCOMPLETE s w {ids[2]} f 2") == b"%d.0" % ids[3]
    step("TRESERVE s w", 3)
    step("TRESERVE s w", 3)
    step("TRESERVE s w", 3)
    step(f"TCOMPLETE s w {ids[5]} f 5", 3)
    step(f"TCOMPLETE s w {ids[4]} f 4", 5)
    step(f"TCOMPLETE s w {ids[6]} f 6", 6)
    stream = in_process.stream()
    assert [ms for ms, _, _ in stream.range()] == sorted(ids.values())
    is_replayed(in_process)


# ---------------------------------------------------------------- any order


class Writers(RuleBasedStateMachine):
    """Some writers, appends between their reservations, and readers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.in_process = InProcessServer()
        self.player = self.in_process.player()
        self.player.call("TAPPEND s f first")
        first = self.in_process.stream().last_id
        self.open: dict[Id, tuple[bytes, int]] = {}  # writer, deadline
        self.entries: dict[Id, list[bytes]] = {first: [b"f", b"first"]}
        self.owner: dict[Id, bytes | None] = {first: None}
        self.handed_out = [first]
        self.position = first
        self.evicted: Id = (0, 0)
        self.written = 0
        self.tread: Id = (0, 0)
        self.tmread: Id = (0, 0)
        self.token = b"0"
        self.read: list[Id] = []
        self.followed: list[Id] = []
        self.peeked: set[Id] = set()
        self.lost: set[Id] = set()  # trimmed before a reader could have read it

    # ------------------------------------------------------------ writing

    @rule(writer=st.sampled_from("abc"), count=st.integers(0, 3), lease_ms=st.integers(1, 40))
    def reserve(self, writer: str, count: int, lease_ms: int) -> None:
        more = f" COUNT {count}" if count else ""
        reply: Any = self.player.call(f"TRESERVE s {writer}{more} LEASE {lease_ms}")
        for entry_id in map(parsed, reply if count else [reply]):
            self.hand_out(entry_id)
            self.open[entry_id] = writer.encode(), self.in_process.wall_ms + lease_ms

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        self.expire()
        if not self.open:
            return
        entry_id = data.draw(st.sampled_from(sorted(self.open)))
        writer, _ = self.open.pop(entry_id)
        self.add(entry_id, writer)
        word = self.entries[entry_id][1].decode()
        reply: Any = self.player.call(f"TCOMPLETE s {writer.decode()} {printed(entry_id)} f {word}")
        assert parsed(reply) == self.settled()
        same = f"TCOMPLETE s {writer.decode()} {printed(entry_id)} f"
        replies: Any = [self.player.call(f"{same} {word}"), self.player.call(f"{same} again")]
        replies.append(self.player.call(f"TCOMPLETE s x {printed(entry_id)} f {word}"))
        codes = [reply.text.split()[0] for reply in replies]
        assert codes == ["FACTDONE", "NORESERVATION", "NORESERVATION"]

    def hand_out(self, entry_id: Id) -> None:
        assert entry_id > self.handed_out[-1]
        self.handed_out.append(entry_id)

    def add(self, entry_id: Id, writer: bytes | None) -> None:
        self.written += 1
        self.entries[entry_id] = [b"f", b"%d" % self.written]
        self.owner[entry_id] = writer

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.expire()
        if not self.open:
            return
        entry_id = data.draw(st.sampled_from(sorted(self.open)))
        writer, _ = self.open.pop(entry_id)
        assert self.player.call(f"TABORT s {writer.decode()} {printed(entry_id)}") == 1
        again: Any = self.player.call(f"TCOMPLETE s {writer.decode()} {printed(entry_id)} f x")
        assert again.text.startswith("FACTLOST")

    @rule(writer=st.sampled_from("abc"), spares=st.booleans())
    def abort_all(self, writer: str, spares: bool) -> None:
        self.expire()
        own = [entry_id for entry_id, (name, _) in self.open.items() if name == writer.encode()]
        kept = own[:1] if spares else []
        words = f" EXCEPT {printed(kept[0])}" if kept else ""
        assert self.player.call(f"TABORT s {writer}{words}") == len(own) - len(kept)
        for entry_id in own[len(kept) :]:
            del self.open[entry_id]

    @rule(writer=st.sampled_from("abc"), lease_ms=st.integers(1, 60))
    def renew(self, writer: str, lease_ms: int) -> None:
        self.expire()
        own = [entry_id for entry_id, (name, _) in self.open.items() if name == writer.encode()]
        assert self.player.call(f"TRENEW s {writer} {lease_ms}") == len(own)
        for entry_id in own:
            self.open[entry_id] = writer.encode(), self.in_process.wall_ms + lease_ms

    @rule(count=st.sampled_from([1, 1, 2, 20, 70]))
    def append(self, count: int) -> None:
        for _ in range(count):
            reply: Any = self.player.call(f"TAPPEND s f {self.written + 1}")
            entry_id = parsed(reply)
            self.hand_out(entry_id)
            self.add(entry_id, None)

    @rule(span_ms=st.integers(1, 20))
    def wait(self, span_ms: int) -> None:
        self.in_process.wait_ms(span_ms)
        self.expire()

    def expire(self) -> None:
        """Leases that are over; a command that looks at reservations ends them in the server."""
        now_ms = self.in_process.wall_ms
        self.open = {i: kept for i, kept in self.open.items() if kept[1] > now_ms}
        self.player.call("TPOSITION s")

    @rule(keep=st.integers(0, 30))
    def trim(self, keep: int) -> None:
        self.expire()
        self.read_all()
        visible = self.visible()
        gone = visible[: max(0, len(visible) - keep)]
        assert self.player.call(f"XTRIM s MAXLEN {keep}") == len(gone)
        for entry_id in gone:
            del self.entries[entry_id]
            self.evicted = max(self.evicted, entry_id)

    # ------------------------------------------------------------ what must be visible

    def settled(self) -> Id:
        """The position: the last ID handed out before the oldest reservation."""
        oldest = min(self.open, default=None)
        return max(i for i in self.handed_out if oldest is None or i < oldest)

    def visible(self) -> list[Id]:
        position = self.settled()
        return [i for i in sorted(self.entries) if i <= position]

    # ------------------------------------------------------------ reading

    @rule(count=st.sampled_from([1, 2, 50]))
    def tread_some(self, count: int) -> None:
        reply: Any = self.player.call(f"TREAD s {printed(self.tread)} {count}")
        for entry in reply:
            assert entry is not None
            self.read.append(parsed(entry[0]))
            assert entry[1:] == self.entries[parsed(entry[0])]
            self.tread = parsed(entry[0])

    @rule(count=st.sampled_from([0, 1, 2, 50]))
    def tmread_some(self, count: int) -> None:
        reply: Any = self.player.call(f"TMREAD {count} STREAMS s {printed(self.tmread)}")
        key, prev, following, rows, ended, _ = reply[0]
        assert (key, ended) == (b"s", 0)
        assert parsed(prev) == max(self.tmread, self.evicted)
        found = [parsed(row[0]) for row in rows]
        self.followed += found
        assert found == [i for i in sorted(self.entries) if parsed(prev) < i <= parsed(following)]
        assert parsed(following) >= parsed(prev)
        assert not any(parsed(prev) < i <= parsed(following) for i in self.open)
        self.tmread = parsed(following)

    @rule(count=st.sampled_from([0, 1, 2, 50]))
    def tpeek_some(self, count: int) -> None:
        reply: Any = self.player.call(f"TPEEK s {self.token.decode()} {count}")
        self.token, rows = reply
        found = [parsed(row[0]) for row in rows]
        assert found == sorted(found)
        assert not self.peeked & set(found)
        for entry_id, row in zip(found, rows, strict=True):
            assert row[1:] == self.entries[entry_id]
            assert self.owner[entry_id] not in {
                name for i, (name, _) in self.open.items() if i < entry_id
            }
        self.peeked |= set(found)

    def read_all(self) -> None:
        while True:
            before = self.tread, self.tmread, self.token
            self.tread_some(50)
            self.tmread_some(50)
            self.tpeek_some(50)
            if before == (self.tread, self.tmread, self.token):
                break
        peekable = {
            i
            for i in self.entries
            if self.owner[i] not in {name for j, (name, _) in self.open.items() if j < i}
        }
        assert peekable <= self.peeked
        assert set(self.visible()) <= set(self.read)
        assert set(self.visible()) <= set(self.followed)

    # ------------------------------------------------------------ always

    @invariant()
    def is_sound(self) -> None:
        stream = self.in_process.stream()
        check_stream(stream)
        if stream.held is not None:
            check_held(stream.held, stream)
        assert stream.last_id >= self.position
        self.position = stream.last_id
        assert self.read == sorted(set(self.read))
        assert self.followed == sorted(set(self.followed))

    def teardown(self) -> None:
        self.expire()
        self.read_all()
        stream = self.in_process.stream()
        assert [entry[:2] for entry in stream.range()] == self.visible()
        is_replayed(self.in_process)
        restored = again_from_snapshot(stream)
        assert forms(restored) == forms(stream)


def again_from_snapshot(stream: Stream) -> Stream:
    """The stream as a base gives it back."""
    meta, blocks = dump_stream(stream)
    made = load_stream(meta, blocks, NOW_MS)
    found = ordering_meta(stream)
    if "held" in found:
        packed = msgpack.unpackb(b"".join(found["held"].packed()))
        made.held = held_snapshot.load(packed, made, NOW_MS)
        check_held(made.held, made)
    return made


TestWriters = Writers.TestCase
TestWriters.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)


def moments_after_replay(in_process: InProcessServer) -> list[int]:
    return [moment for moment, *_ in in_process.replayed().timer_requests]


def test_a_journal_with_many_reservations_notes_few_times(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    """All moments are kept until the journal is read."""
    for _ in range(100):
        reserved = player.call("TRESERVE s w")
        player.call(f"TCOMPLETE s w {reserved.decode()} f v")
        player.call("TRESERVE s w LEASE 600000")
    assert len(moments_after_replay(in_process)) < 5


def test_a_shortened_lease_ends_on_time_after_a_start(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("TRESERVE s w LEASE 600000")
    long = min(moments_after_replay(in_process))
    player.call("TRENEW s w 300")
    assert min(moments_after_replay(in_process)) == long - 600_000 + 300


def test_only_the_lease_of_an_open_reservation_is_renewed(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    entry_id = parsed(player.call("TRESERVE s w"))
    held = in_process.stream().held
    assert held is not None
    assert held.renew_lease(*entry_id, 1000, NOW_MS)
    assert held.lease_of(*entry_id) == (b"w", 1000, NOW_MS + 1000)
    assert not held.renew_lease(entry_id[0] + 1, 0, 1000, NOW_MS)


def test_a_long_load_ends_no_lease(in_process: InProcessServer, player: InProcessClient) -> None:
    for line in ("TRESERVE s w LEASE 500", "TRESERVE t w", "RENAME t u", "SET t v"):
        player.call(line)
    loaded = in_process.replayed()
    opened_ms = loaded.steady_ms + 60_000
    restart_leases(loaded, opened_ms)
    deadlines = {}
    for key in (b"s", b"u"):
        stream = loaded.databases[0].stream(key)
        assert stream is not None
        assert stream.held is not None
        deadlines[key] = stream.held.next_deadline_ms
    assert deadlines == {b"s": opened_ms + 500, b"u": opened_ms + 30_000}


def test_a_writer_that_a_snapshot_does_not_have_is_a_clear_error(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("TRESERVE s w")
    stream = in_process.keyspace.databases[0].stream(b"s")
    assert stream is not None
    meta, blocks = dump_stream(stream, shared=True)
    meta = {**meta, "groups": [], "held": ordering_meta(stream)["held"].dump()}
    meta["held"]["segments"][0][7] = 9
    with pytest.raises(ValueError, match="out of range"):
        StoredKeyspace(in_process.keyspace).restore(0, b"other", "stream", meta, list(blocks))


def test_aborted_reservations_after_an_open_one_take_no_memory(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("TRESERVE s slow")
    for _ in range(30):
        player.call("TRESERVE s w COUNT 2000")
        assert player.call("TABORT s w") == 2000
    for keyspace in (in_process.keyspace, in_process.replayed()):
        stream = keyspace.databases[0].stream(b"s")
        assert stream is not None
        assert stream.held is not None
        check_held(stream.held, stream)
        assert stream.held.memory_bytes < 2_000_000


def test_tpeek_of_a_copy_returns_held_entries(player: InProcessClient) -> None:
    first, second = player.call("TRESERVE s v"), player.call("TRESERVE s w")
    player.call(f"TCOMPLETE s w {second.decode()} n 2")
    token, entries = player.call("TPEEK s 0 10")
    assert entries == [[second, b"n", b"2"]]
    player.call(f"TCOMPLETE s v {first.decode()} n 1")
    player.call("COPY s t")
    assert player.call(f"TPEEK t {token.decode()} 10") == [second, [[first, b"n", b"1"]]]

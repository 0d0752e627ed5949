"""Slots that move between two servers: the copy is exact while clients write, whatever is cut."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.sim import net
from tests.sim.moving_fleet import (
    MOVE,
    MOVING,
    RANGES,
    TAG_SLOTS,
    MovingFleet,
    MovingNode,
    contents,
)

from millstream.errors import CommandError
from millstream.server.cluster.member_node import MemberNode
from millstream.server.cluster.peers import WRONG_SECRET
from millstream.server.cluster.slot_moves import slot_feed
from millstream.server.cluster.slot_moves.arrivals import Arrivals
from millstream.server.cluster.slot_moves.departures import MISSING_MAX, Departures
from millstream.server.cluster.slot_moves.move_links import MoveLinks
from millstream.server.cluster.slot_moves.slot_data import SlotData
from millstream.server.cluster.slot_moves.slot_import import Phase, SlotImport
from millstream.server.config.directives import Config
from millstream.server.execution.eviction import Eviction
from millstream.storage.keyspace.slot_ranges import Ranges, slots_of

FULL = "MISCONF Errors writing to the AOF file: No space left on device"


@pytest.fixture(autouse=True)
def few_slots_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_feed, "BATCH_SLOTS", 3)


@pytest.mark.parametrize("seed", range(8))
def test_the_copy_is_exact_while_clients_write_and_links_are_cut(seed: int) -> None:
    fleet = MovingFleet(seed)
    fleet.cuts, fleet.kills = seed % 4 > 0, seed % 4 > 1
    fleet.hand_over(7)
    fleet.judge()
    assert not fleet.arriving.has_all(MOVE, 6)
    fleet.cuts = fleet.kills = False
    fleet.until(lambda: bool(fleet.source.slots.parking and fleet.source.slots.parking.clients))
    assert fleet.errors.keys().isdisjoint({"MOVED", "TRYAGAIN"})
    there = contents(fleet.source)
    fleet.move_in_map()
    fleet.target.served.note(fleet.map, "s2", "s2")
    fleet.target.moves.own(MOVE, 2)
    assert contents(fleet.target) == there
    fleet.until(lambda: fleet.target.moves.is_settled(MOVE))
    fleet.source.served.note(fleet.map, "s1", "s1")
    fleet.source.moves.has_moved(MOVE)
    fleet.source.moves.drop(MOVE, 2)
    fleet.rest(200)
    assert fleet.errors["MOVED"] > 0
    assert not fleet.source.slots.parking.clients
    assert fleet.source.keyspace.capture is None
    assert not fleet.source.moves.departures
    assert not fleet.target.moves.imports
    assert not contents(fleet.source)


def test_slots_whose_departure_was_lost_are_hidden_and_freed() -> None:
    """Of the slots, only those that have keys which are shown."""
    fleet = MovingFleet(1)
    fleet.rest(300)
    node = fleet.source
    assert contents(node)
    assert node.moves.hide(MOVE, MOVING, "s2")
    assert {*slots_of(node.moves.departures[MOVE].ranges)} <= {*TAG_SLOTS}
    assert all(map(node.keyspace.slot_states.hides, contents(node)))
    assert node.moves.hide("0a1c", MOVING, "s2")
    assert [*node.moves.departures] == [MOVE]
    node.moves.drop(MOVE, 2)
    fleet.rest(200)
    assert not contents(node)


def test_slots_are_given_back_unless_they_are_served_here() -> None:
    fleet = MovingFleet(1)
    fleet.hand_over(7)

    def is_given_back() -> bool:
        found = ""
        try:
            fleet.arriving.give_back(MOVE)
        except CommandError as error:
            found = error.message
        return not found.startswith("TRYAGAIN ")

    assert not is_given_back()  # until it is on enough disks
    fleet.until(is_given_back)
    assert not fleet.target.moves.imports
    fleet.allowed_round = 0
    fleet.source.moves.stay(MOVE)
    fleet.hand_over(8)
    fleet.judge()
    fleet.target.moves.own(MOVE, 5)
    with pytest.raises(CommandError, match="serves the slots"):
        fleet.arriving.give_back(MOVE)
    assert fleet.target.moves.epoch == 5


@pytest.mark.parametrize("seed", range(3))
def test_a_hand_over_that_was_taken_back_does_not_count(seed: int) -> None:
    fleet = MovingFleet(seed)
    fleet.hand_over(7)
    fleet.allowed_round = 0
    fleet.source.moves.stay(MOVE)
    fleet.arriving.hand_over(MOVE, 8)
    assert not fleet.arriving.has_all(MOVE, 8)
    before = fleet.writes
    fleet.until(lambda: fleet.writes > before + 50)  # the source serves again
    assert fleet.errors.keys().isdisjoint({"MOVED", "TRYAGAIN"})
    assert not fleet.leaving.has_left(MOVE)  # round 8 is not allowed yet
    fleet.hand_over(8)
    fleet.judge()


def stop(node: MovingNode) -> None:
    unused: Any = None
    member = MemberNode("a" * 40, Config(), unused, lambda: False, lambda: 0)
    member.moves = node.moves
    member.stop()


def test_nothing_of_a_move_arrives_after_the_stop_of_its_target() -> None:
    """It would be recorded after the last frame is on the disk."""
    fleet = MovingFleet(1)
    fleet.follow()
    stop(fleet.target)
    last_seq, before = fleet.target.persistence.commits.last_seq, fleet.writes
    fleet.until(lambda: fleet.writes > before + 50)
    assert fleet.target.persistence.commits.last_seq == last_seq
    assert not fleet.leaving.feeds


def test_no_slot_leaves_after_the_stop_of_its_source() -> None:
    fleet = MovingFleet(1)
    fleet.follow()
    stop(fleet.source)
    assert not fleet.leaving.feeds


def test_a_target_without_memory_says_so() -> None:
    fleet = MovingFleet(1)
    fleet.target.executor.admission.set_memory(full=True, lacking=False)
    fleet.begin()
    fleet.until(lambda: bool(fleet.arriving.problem_of(MOVE)))
    assert fleet.arriving.problem_of(MOVE).startswith(
        "the new shard has no memory for the slots: OOM command not allowed"
    )


class ValueBytes:
    """A gauge that knows the bytes of all values of a node. `most` is the greatest figure."""

    def __init__(self, node: MovingNode) -> None:
        self._node = node
        self.most = 0

    def measure(self) -> int:
        found = 0
        for value in self._node.keyspace.databases[0].table.values():
            found += len(value) if isinstance(value, bytes) else value.memory_bytes
        self.most = max(self.most, found)
        return found

    def estimate(self) -> int:
        return 0  # strings are not measured between two looks


@pytest.mark.parametrize("room_bytes", [40_000, 140_000])
def test_a_copy_ends_before_it_exceeds_maxmemory(room_bytes: int) -> None:
    """Also if no request and no second has passed since the last look at used memory."""
    fleet = MovingFleet(1)
    for tag in (b"{x}", b"{yy}", b"{zzz}", b"{w1}"):
        fleet.source.ask(fleet.client, b"SET", tag + b"large", b"x" * 50_000)
    fleet.rest(200)
    gauge = ValueBytes(fleet.target)
    executor = fleet.target.executor
    limited = Eviction(executor.context, gauge, lambda: 0, lambda: 1.0)  # type: ignore[arg-type]
    limited.set_limit(gauge.measure() + room_bytes, evicts=False)
    executor.eviction_work.limit_memory(limited)
    fleet.begin()
    fleet.until(lambda: bool(fleet.arriving.problem_of(MOVE)))
    assert fleet.arriving.problem_of(MOVE).startswith(
        "the new shard has no memory for the slots: OOM command not allowed"
    )
    assert gauge.measure() <= limited.limit_bytes
    assert (gauge.most > 50_000) == (room_bytes > 50_000)


def test_a_move_waits_for_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = MovingFleet(1)
    apply_slice = SlotImport._apply_slice

    def refuse(one: SlotImport) -> None:
        raise CommandError(FULL)

    monkeypatch.setattr(SlotImport, "_apply_slice", refuse)
    fleet.begin()
    fleet.until(lambda: bool(fleet.arriving.obstacle_of(MOVE)))
    assert fleet.arriving.obstacle_of(MOVE) == FULL
    assert not fleet.arriving.problem_of(MOVE)
    monkeypatch.setattr(SlotImport, "_apply_slice", apply_slice)
    fleet.hand_over(7)
    assert not fleet.arriving.obstacle_of(MOVE)
    fleet.judge()


def test_a_hand_over_waits_for_a_full_disk_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = MovingFleet(1)
    fleet.follow()
    fleet.rest(300)
    [feed] = fleet.leaving.feeds
    attempts = 0

    def refuse(data: SlotData, move: str, ranges: Ranges, shard: str) -> None:
        nonlocal attempts
        attempts += 1
        raise CommandError(FULL)

    with monkeypatch.context() as patch:
        patch.setattr(SlotData, "note_left", refuse)
        fleet.allowed_round = 7
        fleet.arriving.hand_over(MOVE, 7)
        fleet.until(lambda: attempts > 3)
    assert [*fleet.leaving.feeds] == [feed]  # the link is still the same
    assert not fleet.leaving.has_left(MOVE)
    fleet.hand_over(7)
    fleet.judge()


def test_a_copy_that_members_lack_is_not_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests would wait until they have it. The source knows only the size of its own frames."""
    last_seq = 2**62
    safe_seq = MoveLinks.safe_seq

    def safe(links: MoveLinks) -> int:
        is_target = links is fleet.target.moves
        return min(safe_seq(links), last_seq) if is_target else safe_seq(links)

    monkeypatch.setattr(MoveLinks, "safe_seq", safe)
    fleet = MovingFleet(1)
    fleet.begin()
    fleet.until(lambda: fleet.arrival.place.slot >= RANGES[0][0])  # type: ignore[union-attr]
    last_seq = fleet.target.persistence.commits.last_seq
    fleet.until(lambda: fleet.phase() is Phase.FOLLOWING)
    fleet.rest(500)
    assert fleet.arrival is not None
    assert fleet.arrival._missing_bytes is not None
    assert fleet.arrival._missing_bytes < MISSING_MAX
    assert not fleet.arriving.is_close(MOVE)
    last_seq = 2**62
    assert fleet.arriving.is_close(MOVE)


def test_a_hand_over_waits_for_disks_and_not_for_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = MovingFleet(1)
    fleet.follow()
    fleet.rest(300)
    monkeypatch.setattr(Departures, "_look", lambda departures: None)
    monkeypatch.setattr(Arrivals, "_look", lambda arrivals: None)
    fleet.rest(50)
    changes: list[bool] = []
    fleet.arriving.on_change = lambda: changes.append(fleet.arriving.has_all(MOVE, 7))
    fleet.allowed_round = 7
    fleet.arriving.hand_over(MOVE, 7)
    fleet.until(lambda: True in changes)


def test_a_hand_over_of_an_earlier_term_is_not_told_again() -> None:
    """Another primary has taken it back, and recorded a later one."""
    fleet = MovingFleet(1)
    fleet.hand_over(7)
    data = fleet.leaving._parts.data
    data.note_stay(MOVE)
    data.note_left(MOVE, RANGES, "s2")
    fleet.terms[0] += 1
    fleet._lead(fleet.source)
    fleet.follow()
    fleet.allowed_round = 200
    fleet.arriving.hand_over(MOVE, 200)
    for _ in range(20):
        fleet.rest(50)
    assert not fleet.arriving.has_all(MOVE, 200)


def test_nothing_leaves_before_the_judge_allows_it() -> None:
    fleet = MovingFleet(1)
    fleet.follow()
    fleet.arriving.hand_over(MOVE, 7)
    before = fleet.writes
    fleet.until(lambda: fleet.writes > before + 50)
    assert not fleet.leaving.has_left(MOVE)


def test_an_answer_names_the_round_that_was_allowed() -> None:
    """A later round is asked for while the answer to an earlier one waits for the disk."""
    fleet = MovingFleet(1)
    fleet.follow()
    fleet.rest(300)
    fleet.allowed_round = 7
    [feed] = fleet.leaving.feeds
    fleet.leaving.ask(feed.client, 7)
    assert fleet.leaving.has_left(MOVE)
    fleet.leaving.ask(feed.client, 8)
    fleet.rest(300)
    arrival = fleet.arrival
    assert arrival is not None
    assert arrival.handed is not None
    assert arrival.handed.round == 7


@pytest.mark.parametrize("seed", range(3))
def test_the_copy_begins_again_if_a_failover_lost_the_last_frame(seed: int) -> None:
    fleet = MovingFleet(seed)
    fleet.rest(100)
    old = fleet.source.disk.copy()
    before = fleet.writes
    fleet.until(lambda: fleet._is_following() and fleet.writes > before + 50)
    fleet.restart(fleet.source, old)  # as a later primary that lacks the frames since
    fleet.rest(100)
    fleet.hand_over(7)
    fleet.judge()


def test_the_copy_continues_at_another_primary() -> None:
    fleet = MovingFleet(2)
    fleet.follow()
    fleet.rest(500)
    sent_bytes = fleet.leaving.total_sent_bytes
    fleet.restart(fleet.source, fleet.source.disk.copy())
    fleet.rest(100)
    fleet.follow()
    assert fleet.leaving.total_sent_bytes < sent_bytes / 10
    fleet.hand_over(7)
    fleet.judge()


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_copy_that_continues_is_close_without_further_writes(is_cut: bool) -> None:
    """The link is cut, or another primary of the target takes over, after the last write."""
    fleet = MovingFleet(1)
    fleet.follow()
    fleet.rest(2000)
    assert fleet.arriving.is_close(MOVE)
    if is_cut:
        assert fleet.arrival is not None
        fleet.arrival._lose("cut")
    else:
        fleet.restart(fleet.target, fleet.target.disk.copy())
        fleet.begin()
    assert not fleet.arriving.is_close(MOVE)
    for _ in range(20):
        fleet.rest(100)
    assert fleet.phase() is Phase.FOLLOWING
    assert fleet.arriving.is_close(MOVE)


@pytest.mark.parametrize("seed", range(2))
def test_old_journals_stay_until_their_frames_are_sent(
    seed: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a busy server with large slots would begin the copy again and again."""
    fleet = MovingFleet(seed)
    fleet.rewrites = 0
    fleet.source.replication.feeds.config.repl_backlog_size = 200
    persistence = fleet.source.persistence
    fleet.begin()
    fleet.until(lambda: fleet.phase() is Phase.COPYING)
    monkeypatch.setattr(net, "PIPE_BYTES", 0)
    silent = frozenset((0, 1))
    fleet.partitions.add(silent)
    for _ in range(30):
        fleet.write()
        fleet.rest(10)
    persistence.snapshots.rewrite()
    fleet.rest(1000)
    assert persistence.base_seq == 0
    fleet.partitions.remove(silent)
    fleet.hand_over(7)
    fleet.judge()
    fleet.until(lambda: persistence.base_seq > 0)
    assert "begins again" not in caplog.text


def reload(node: MovingNode) -> None:
    """As DEBUG RELOAD does."""
    keyspace = node.keyspace

    def empty() -> None:
        keyspace.slot_states.clear()
        for database in keyspace.databases:
            database.clear()

    keyspace.expiring = False
    node.persistence.read_again(empty)
    keyspace.expiring = True


def test_a_reload_delivers_nothing_to_a_read_that_waits() -> None:
    fleet = MovingFleet(1)
    stream, source = b"{x}waits", fleet.source
    first, second = source.accept(), source.accept()
    source.ask(first, b"XADD", stream, b"1-1", b"a", b"1")
    source.ask(first, b"XGROUP", b"CREATE", stream, b"g", b"0")
    fleet.rest(100)
    fleet.hand_over(7)
    fleet.allowed_round = 0
    source.moves.stay(MOVE)
    read = b"XREADGROUP", b"GROUP", b"g"
    source.ask(first, *read, b"one", b"STREAMS", stream, b">")
    source.ask(second, *read, b"two", b"BLOCK", b"0", b"STREAMS", stream, b">")
    fleet.rest(100)
    assert not first.asked
    assert len(second.asked) == 1
    reload(source)
    fleet.rest(100)
    assert len(second.asked) == 1  # the journal has a state in which the entry was not delivered


def test_an_heir_records_nothing_before_its_term_begins() -> None:
    """A frame in the line of the old primary could have the number of one that this primary has
    made: both would seem to be the same, and a rewind would keep the wrong one."""
    fleet = MovingFleet(1)
    fleet.hand_over(7)
    for node in list(fleet.moving):
        fleet._restart(node, node.disk.copy())
    orders = [
        (fleet.target, partial(fleet.target.moves.own, epoch=2)),
        (fleet.source, fleet.source.moves.stay),
    ]
    for node, order in orders:
        before = node.persistence.commits.last_seq
        assert not node.terms.is_leading
        order(MOVE)
        assert node.persistence.commits.last_seq == before
        fleet.terms[node.index] += 1
        fleet._lead(node)
        order(MOVE)
        last_seq = node.persistence.commits.last_seq
        assert node.replication.histories.line_at(last_seq)[1] == fleet.terms[node.index]
    assert not fleet.target.moves.imports
    assert not fleet.source.moves.departures


def test_nothing_arrives_at_a_server_whose_term_has_ended() -> None:
    fleet = MovingFleet(1)
    fleet.follow()
    arriving = fleet.arrival
    assert arriving is not None
    fleet.until(lambda: bool(arriving._pending))
    fleet.target.terms.promise(9)
    before = fleet.target.persistence.commits.last_seq
    arriving._apply()
    fleet.rest(200)
    assert fleet.target.persistence.commits.last_seq == before
    assert fleet.arrival is None


def test_an_heir_frees_slots_before_they_come_back() -> None:
    fleet = MovingFleet(1)
    states = fleet.target.keyspace.slot_states
    states.leave("2e", RANGES[:1], "s2")
    for _ in range(3):
        fleet.begin()
        fleet.rest(50)
    assert not fleet.target.moves.copied(MOVE).failure
    states.drop("2e", 2)
    fleet.hand_over(7)
    fleet.judge()


def test_a_source_that_refuses_the_secret_is_an_obstacle() -> None:
    fleet = MovingFleet(1)
    secret = fleet.arriving._secret
    fleet.arriving._secret = lambda: b"another one"
    fleet.begin()
    fleet.until(lambda: bool(fleet.arriving.obstacle_of(MOVE)))
    refusal = f"the other shard refuses: {WRONG_SECRET}"
    assert fleet.target.moves.copied(MOVE).obstacle == refusal
    assert fleet.arrival is not None
    fleet.arrival._secret = secret
    fleet.follow()
    assert not fleet.arriving.obstacle_of(MOVE)

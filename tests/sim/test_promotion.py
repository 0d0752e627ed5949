"""REPLICAOF NO ONE at a replica whose primary works: nothing that was confirmed is lost."""

from __future__ import annotations

import pytest
from tests.sim.data import seen_in
from tests.sim.fleet import Fleet
from tests.sim.fleet_node import FleetClient, FleetNode
from tests.sim.net import Connection
from tests.support.fakedisk import FakeDisk
from tests.support.resp import Error, Reply, Simple, encode_command

from millstream.commands.admin.replication import NOT_PROMOTED, PROMOTING
from millstream.commands.runtime.effects import EffectError
from millstream.server.monitor.info import fields_of
from millstream.server.replication import receiver
from millstream.server.replication.handover import HANDING_OVER
from millstream.server.replication.handover import REFUSED as IS_SUPERSEDED
from millstream.server.replication.history import encode as encode_lines
from millstream.server.replication.link_words import KNOWS_CODES
from millstream.server.replication.role import NO_JOURNAL
from millstream.server.replication.write_refusals import READONLY

NO_ONE = (b"REPLICAOF", b"NO", b"ONE")
OK = Simple("OK")
REFUSED = Error(HANDING_OVER.format("10.0.0.201:7001"))
LACKS = Error(IS_SUPERSEDED.format("10.0.0.201:7001"))


class Three(Fleet):
    """Servers 1 and 2 follow server 0, whose replies wait for one of them. `stopped` are pipes
    that deliver nothing: the number of the replica, and "up" or "down"."""

    def __init__(self, replicas_durable: int = 1) -> None:
        super().__init__(5, 0)
        self.is_durable = replicas_durable > 0
        config = type(self.nodes[0].config)
        self.nodes.clear()
        for index in range(3):
            own = config(
                appendfsync="always",
                replicaof="fleet 7000" if index else "",
                replicas_durable=replicas_durable,
            )
            self.nodes.append(FleetNode(self, index, FakeDisk(index), own, self._own()))
        for node in self.nodes:
            node.start()
        self.stopped: set[tuple[int, str]] = set()
        self.held: Connection | None = None  # nothing is delivered on it
        self.replies: dict[tuple[int, int], list[Reply]] = {}
        self._primary = self.nodes[0]
        self._settle()
        self.rest()

    def _deliverable(self) -> list[tuple[Connection, str]]:
        found = super()._deliverable()
        return [
            (one, way)
            for one, way in found
            if (one.replica.index, way) not in self.stopped and one is not self.held
        ]

    def pass_seconds(self, count: int) -> None:
        """Second by second, so that beats and checks are on time."""
        for _ in range(count):
            self.rest(1000)

    def ask(self, index: int, *words: bytes) -> list[Reply]:
        """The replies to a new client; later ones are added."""
        client = self.nodes[index].accept()
        replies = self.replies[index, client.id] = []
        self.nodes[index].ask(client, *words)
        self.rest()
        return replies

    def append(self) -> list[Reply]:
        return self.ask(0, b"XADD", b"a", b"*", b"n", b"1")

    def answered(self, client: FleetClient, words: tuple[bytes, ...], reply: Reply) -> None:
        self.replies.get((client.node.index, client.id), []).append(reply)

    def is_promoted(self) -> bool:
        return self.nodes[1].replication.link is None

    def has_all(self) -> bool:
        """True if server 1 has all frames of server 0."""
        return (
            self.nodes[1].persistence.commits.last_seq >= self.nodes[0].persistence.commits.last_seq
        )


@pytest.fixture(params=[1, 0], ids=["durable", "default"])
def fleet(request: pytest.FixtureRequest) -> Three:
    return Three(request.param)


def shown(fleet: Three, index: int, field: str) -> object:
    """A field of INFO of a server."""
    return fields_of(fleet.nodes[index].replication.info())[field]


def shows_promotion(fleet: Three, index: int) -> bool:
    """True if INFO of the server shows that it, or a replica of it, is being promoted."""
    return shown(fleet, index, "promotion_in_progress") == 1


def lines_in(fleet: Three, index: int) -> tuple[object, ...]:
    """The last two lines of history in INFO, and the offset where the newer one begins."""
    shown = fields_of(fleet.nodes[index].replication.info())
    return shown["master_replid"], shown["master_replid2"], shown["second_repl_offset"]


def restart_as_replica(fleet: Three, index: int, primary: int) -> None:
    node = fleet.nodes[index]
    node.config.replicaof = f"fleet {7000 + primary}"
    fleet._restart(node, node.disk.copy())
    fleet.pass_seconds(2)


def test_info_shows_where_the_newest_line_of_history_begins() -> None:
    fleet = Three(replicas_durable=0)
    fleet.append()
    first_line, *before = lines_in(fleet, 0)
    assert before == ["0" * 40, -1]
    ends: list[int] = []
    for promoted in (1, 2):
        end = fleet.nodes[promoted].persistence.commits.frame_bytes + 1
        fleet.ask(promoted, *NO_ONE)
        new_line, *before = lines_in(fleet, promoted)
        assert before == [first_line, end]  # before the first write
        for node in fleet.nodes:
            if node.index != promoted:
                node.ask(node.accept(), b"REPLICAOF", b"fleet", b"%d" % (7000 + promoted))
        fleet.pass_seconds(2)
        fleet.ask(promoted, b"XADD", b"a", b"*", b"n", b"1")
        fleet.ask(promoted, b"XADD", b"a", b"*", b"n", b"2")
        for index in range(3):
            assert lines_in(fleet, index) == (new_line, first_line, end)
        restart_as_replica(fleet, 0, promoted)  # it reads its journal
        assert lines_in(fleet, 0) == (new_line, first_line, end)
        fleet.nodes[0].persistence.snapshots.rewrite()
        fleet.rest()
        restart_as_replica(fleet, 0, promoted)  # it reads its base
        assert lines_in(fleet, 0) == (new_line, first_line, end)
        ends.append(end)
        first_line = new_line
    assert ends[0] < ends[1]


def begin_without_the_last_entry(fleet: Three) -> list[Reply]:
    """Server 2 has confirmed an entry that server 1 lacks, and server 1 is promoted. Returns the
    replies to the promotion."""
    fleet.stopped = {(1, "down")}
    (reply,) = fleet.append()
    assert not isinstance(reply, Error)
    replies = fleet.ask(1, *NO_ONE)
    assert not replies
    assert not fleet.is_promoted()
    assert not fleet.has_all()
    return replies


def test_a_promotion_waits_for_writes_confirmed_by_others(fleet: Three) -> None:
    replies = begin_without_the_last_entry(fleet)
    fleet.stopped = set()
    fleet.rest()
    assert fleet.is_promoted()
    assert fleet.has_all()
    assert replies == [OK]
    assert fleet.nodes[1].replication.promotion.was_complete
    assert fleet.nodes[1].config.replicaof == ""
    fleet.ask(2, b"REPLICAOF", b"fleet", b"7001")
    fleet.rest(1000)
    (reply,) = fleet.ask(1, b"XADD", b"a", b"*", b"n", b"2")
    assert not isinstance(reply, Error)


def test_a_promotion_in_a_transaction_is_answered_at_once(fleet: Three) -> None:
    """Sentinel sends REPLICAOF NO ONE and CONFIG REWRITE in a transaction."""
    fleet.stopped = {(1, "down")}
    node = fleet.nodes[1]
    client = node.accept()
    for words in ((b"MULTI",), NO_ONE, (b"EXEC",)):
        node.ask(client, *words)
    fleet.rest()
    assert not client.asked
    assert not fleet.is_promoted()
    assert node.config.replicaof == ""
    fleet.stopped = set()
    fleet.rest()
    assert fleet.is_promoted()


def test_the_primary_confirms_nothing_during_a_promotion(fleet: Three) -> None:
    """Server 2 has the entry on its disk; what the promoted server has is not known."""
    fleet.stopped = {(2, "up"), (1, "down")}
    replies = fleet.append()
    seq = fleet.nodes[0].persistence.commits.last_seq
    assert not shows_promotion(fleet, 0)
    fleet.ask(1, *NO_ONE)
    assert shows_promotion(fleet, 1)
    fleet.stopped = {(1, "down")}
    fleet.rest()
    assert shows_promotion(fleet, 0)
    assert fleet.nodes[0].replication.synced_on(seq)
    assert bool(replies) is not fleet.is_durable
    assert fleet.append() == [REFUSED]


def test_the_primary_follows_the_promoted_server(fleet: Three) -> None:
    begin_without_the_last_entry(fleet)
    assert fleet.append() == [REFUSED]
    fleet.stopped = set()
    fleet.pass_seconds(3)
    assert fleet.is_promoted()
    assert fleet.append() == [Error(READONLY)]
    old = fleet.nodes[0]
    assert old.config.replicaof == "10.0.0.201 7001"
    (reply,) = fleet.ask(1, b"XADD", b"a", b"*", b"n", b"2")
    fleet.rest(1000)
    assert not isinstance(reply, Error)
    for node in fleet.nodes:  # the other replica has stayed with the old primary
        assert seen_in(node.keyspace) == seen_in(fleet.nodes[1].keyspace)
        assert node.replication.totals.rewinds == 0
    assert sum(node.replication.resync.full_syncs for node in fleet.nodes) == 2  # at the start


def test_the_primary_makes_no_frames_during_a_promotion(fleet: Three) -> None:
    assert isinstance(fleet.append()[0], bytes)
    assert fleet.ask(0, b"TPOLICY", b"a", b"MAXAGE", b"2000", b"EXACT") == [OK]
    begin_without_the_last_entry(fleet)
    fleet.nodes[1].is_frozen = True
    seq = fleet.nodes[0].persistence.commits.last_seq
    fleet.pass_seconds(14)
    assert fleet.nodes[0].persistence.commits.last_seq == seq
    fleet.pass_seconds(4)
    # The replica is lost, the policy trims.
    assert fleet.nodes[0].persistence.commits.last_seq > seq


def test_the_primary_continues_when_the_replica_is_lost(fleet: Three) -> None:
    begin_without_the_last_entry(fleet)
    fleet.nodes[1].is_frozen = True
    fleet.pass_seconds(14)
    assert fleet.append() == [REFUSED]
    fleet.pass_seconds(2)
    (reply,) = fleet.append()
    assert not isinstance(reply, Error)


def lose_the_last_word(fleet: Three) -> None:
    """Server 1 is promoted, and the network fails before server 0 learns it."""
    begin_without_the_last_entry(fleet)
    node = fleet.nodes[1]
    fleet.stopped = {(1, "up")}
    fleet.rest()
    assert fleet.is_promoted()
    fleet.partitions = {frozenset((0, 1))}
    for one in fleet.connections:
        if one.replica is node:
            one.cut()
    fleet.rest()


def turn_journal_off(node: FleetNode) -> None:
    node.config.appendonly = False
    node.executor.effects.enabled = False
    node.persistence.set_appendonly(False)


def test_a_server_without_a_journal_gets_no_handover(fleet: Three) -> None:
    """It could not feed the old primary, which would follow it."""
    turn_journal_off(fleet.nodes[1])
    assert fleet.ask(1, *NO_ONE) == [Error(NO_JOURNAL)]
    assert not fleet.is_promoted()
    assert isinstance(fleet.append()[0], bytes)
    assert fleet.ask(1, *NO_ONE, b"INDEPENDENT") == [OK]
    assert fleet.is_promoted()


def test_the_promoted_server_repeats_lost_effects(fleet: Three) -> None:
    lose_the_last_word(fleet)
    fleet.pass_seconds(5)
    assert fleet.append() == [REFUSED]
    fleet.partitions.clear()
    fleet.stopped = set()
    fleet.pass_seconds(3)
    assert fleet.append() == [Error(READONLY)]
    link = fleet.nodes[0].replication.link
    assert link is not None
    assert link.is_connected
    assert fleet.nodes[1].replication.promotion._announcement is None


def confirm_too_late(fleet: Three) -> None:
    """The old primary waits without a result, confirms again, and then gets the promotion."""
    lose_the_last_word(fleet)
    fleet.pass_seconds(16)
    assert isinstance(fleet.append()[0], bytes)
    fleet.partitions.clear()
    fleet.stopped = set()
    fleet.pass_seconds(3)


def test_an_old_primary_that_has_more_refuses_writes(fleet: Three) -> None:
    """It has waited without a result and has confirmed again: no such frame is discarded."""
    confirm_too_late(fleet)
    assert fleet.append() == [LACKS]
    assert shown(fleet, 0, "superseded_by") == "10.0.0.201:7001"
    assert shown(fleet, 0, "role") == "master"
    fleet.pass_seconds(60)
    assert fleet.append() == [LACKS]
    assert fleet.ask(0, *NO_ONE) == [OK]
    assert isinstance(fleet.append()[0], bytes)
    assert shown(fleet, 0, "superseded_by") == ""


def test_an_announcement_counts_the_writes_of_the_same_turn(fleet: Three) -> None:
    """A write that is no frame yet is one that the promoted server lacks."""
    lose_the_last_word(fleet)
    fleet.pass_seconds(16)
    old = fleet.nodes[0]
    frames = old.persistence
    writer, announcer = old.accept(), old.accept()
    old.ask(writer, b"XADD", b"a", b"*", b"n", b"2")
    seq = b"%d" % frames.commits.last_seq
    lines = encode_lines(old.keyspace.histories)
    old.ask(
        announcer,
        *(b"REPLCONF", b"listening-port", b"7001", b"capa", KNOWS_CODES),
        *(b"databases", b"16", b"histories", lines, b"promoted", seq),
    )
    fleet.rest()
    assert frames.commits.last_seq == int(seq) + 1
    assert old.replication.link is None
    assert shown(fleet, 0, "superseded_by") != ""


def test_only_replicas_durable_needs_a_promoted_servers_disk(fleet: Three) -> None:
    """Only replicas-durable demands that the promoted server has stored the frames."""
    lose_the_last_word(fleet)
    turn_journal_off(fleet.nodes[1])
    fleet.partitions.clear()
    fleet.stopped = set()
    fleet.pass_seconds(3)
    assert fleet.append() == [LACKS if fleet.is_durable else Error(READONLY)]


def restart(fleet: Three, index: int, *, rewritten: bool) -> None:
    """Start a server again, with its first configuration unless CONFIG REWRITE has saved it."""
    node = fleet.nodes[index]
    if not rewritten:
        node.config.replicaof = "fleet 7000" if index else ""
    fleet._restart(node, node.disk.copy())
    fleet.rest()


def test_an_old_primary_that_has_more_refuses_after_a_restart(fleet: Three) -> None:
    confirm_too_late(fleet)
    restart(fleet, 0, rewritten=False)
    fleet.pass_seconds(30)
    assert fleet.append() == [LACKS]
    assert fleet.ask(0, *NO_ONE) == [OK]
    fleet.rest()
    restart(fleet, 0, rewritten=False)
    fleet.pass_seconds(3)
    assert isinstance(fleet.append()[0], bytes)


@pytest.mark.parametrize("rewritten", [False, True])
def test_an_old_primary_remains_a_replica_after_a_restart(fleet: Three, rewritten: bool) -> None:
    """As in an upgrade, one server after the other."""
    begin_without_the_last_entry(fleet)
    fleet.stopped = set()
    fleet.pass_seconds(3)
    restart(fleet, 0, rewritten=rewritten)
    assert fleet.append() == [Error(READONLY)]
    assert fleet.nodes[0].shown_priority > 0
    fleet.pass_seconds(2)
    assert shown(fleet, 0, "master_link_status") == "up"
    assert fleet.ask(0, *NO_ONE) == [OK]
    fleet.pass_seconds(2)
    assert fleet.nodes[0].replication.link is None
    restart(fleet, 0, rewritten=False)
    assert fleet.nodes[0].replication.link is None


def test_a_promoted_server_that_returns_as_a_replica_is_served(fleet: Three) -> None:
    """Its configuration was not rewritten, and the old primary has handed over."""
    begin_without_the_last_entry(fleet)
    fleet.stopped = set()
    fleet.pass_seconds(3)
    assert fleet.is_promoted()
    restart(fleet, 1, rewritten=False)
    fleet.pass_seconds(3)
    assert isinstance(fleet.append()[0], bytes)
    assert [node.replication.link is None for node in fleet.nodes] == [True, False, False]


@pytest.mark.parametrize("by_failover", [False, True])
def test_a_server_promoted_twice_is_a_primary_after_a_crash(
    fleet: Three, by_failover: bool
) -> None:
    begin_without_the_last_entry(fleet)
    fleet.stopped = set()
    fleet.pass_seconds(3)
    old, promoted = fleet.nodes[0], fleet.nodes[1]
    assert old.replication.link is not None
    if by_failover:
        promoted.ask(promoted.accept(), b"FAILOVER", b"TO", b"10.0.0.200", b"7000")
    else:
        old.ask(old.accept(), *NO_ONE)
    while old.replication.link is not None:
        busy = [node for node in fleet.nodes if node.has_work()]
        if busy:
            busy[0].step()
        elif fleet._deliverable():
            fleet._deliver()
        else:
            fleet._advance(100)
    fleet._restart(old, old.disk.copy())
    assert fleet.nodes[0].replication.link is None


def test_an_old_primary_remains_a_replica_after_a_failover(fleet: Three) -> None:
    fleet.append()
    fleet.ask(0, b"FAILOVER", b"TO", b"10.0.0.201", b"7001")
    fleet.pass_seconds(3)
    assert fleet.is_promoted()
    restart(fleet, 0, rewritten=False)
    assert fleet.append() == [Error(READONLY)]


def test_an_old_primary_that_has_more_follows_by_order(fleet: Three) -> None:
    confirm_too_late(fleet)
    for index in (0, 2):
        fleet.ask(index, b"REPLICAOF", b"fleet", b"7001")
    fleet.pass_seconds(3)
    assert fleet.ask(0, b"XLEN", b"a") == fleet.ask(1, b"XLEN", b"a") == [1]


def test_an_old_primary_that_cannot_be_notified_is_reported(
    fleet: Three, caplog: pytest.LogCaptureFixture
) -> None:
    lose_the_last_word(fleet)
    fleet.pass_seconds(32)
    assert fleet.nodes[1].replication.promotion._announcement is None
    assert "the old primary fleet:7000 does not know that this server was promoted" in caplog.text


def test_an_independent_server_leaves_the_primary_alone(fleet: Three) -> None:
    fleet.stopped = {(1, "down")}
    assert isinstance(fleet.append()[0], bytes)
    assert fleet.ask(1, *NO_ONE, b"INDEPENDENT") == [OK]
    assert fleet.is_promoted()
    fleet.stopped = set()
    fleet.pass_seconds(3)
    for index in (0,) if fleet.is_durable else (0, 1):  # server 1 has no replica
        assert isinstance(fleet.ask(index, b"XADD", b"a", b"*", b"n", b"2")[0], bytes)
    assert fleet.ask(1, *NO_ONE, b"ALONE") == [Error("ERR syntax error")]


def test_independence_ends_a_promotion(fleet: Three) -> None:
    replies = begin_without_the_last_entry(fleet)
    assert fleet.ask(1, *NO_ONE, b"INDEPENDENT") == [OK]
    assert replies == [OK]
    assert isinstance(fleet.append()[0], bytes)


def test_a_primary_accepts_writes_again_on_an_order(fleet: Three) -> None:
    begin_without_the_last_entry(fleet)
    assert fleet.append() == [REFUSED]
    assert fleet.ask(0, *NO_ONE) == [OK]
    assert isinstance(fleet.append()[0], bytes)


def test_a_transaction_that_writes_fails_during_a_promotion(fleet: Three) -> None:
    node = fleet.nodes[0]
    client = node.accept()
    replies = fleet.replies[0, client.id] = []
    node.ask(client, b"MULTI")
    node.ask(client, b"XADD", b"a", b"*", b"n", b"1")
    fleet.rest()
    begin_without_the_last_entry(fleet)
    seq = node.persistence.commits.last_seq
    node.ask(client, b"EXEC")
    fleet.rest()
    assert isinstance(replies[-1], Error)
    assert node.persistence.commits.last_seq == seq


def test_a_silent_primary_is_not_waited_for(fleet: Three) -> None:
    fleet.nodes[0].is_frozen = True
    replies = fleet.ask(1, *NO_ONE)
    fleet.rest(1000)
    assert not fleet.is_promoted()
    for _ in range(4):
        fleet.rest(500)
    assert fleet.is_promoted()
    assert replies == [OK]
    assert not fleet.nodes[1].replication.promotion.was_complete


def test_a_promotion_does_not_wait_for_ever(fleet: Three) -> None:
    """The primary sends beats, and never reports that the replica has everything."""
    fleet.stopped = {(1, "up")}
    fleet.ask(1, *NO_ONE)
    for _ in range(19):
        fleet.rest(500)
    assert not fleet.is_promoted()
    fleet.rest(500)
    assert fleet.is_promoted()


def test_a_lost_link_is_made_once_more(fleet: Three) -> None:
    begin_without_the_last_entry(fleet)
    for one in fleet.connections:
        one.cut()
    fleet.stopped = set()
    fleet.rest()
    assert fleet.is_promoted()
    assert fleet.has_all()
    assert fleet.nodes[1].replication.promotion.was_complete


def test_a_promotion_does_not_wait_for_a_lost_primary(fleet: Three) -> None:
    begin_without_the_last_entry(fleet)
    fleet.partitions = {frozenset((0, 1))}
    for one in fleet.connections:
        one.cut()
        for end in list(one.ends):
            one.notify(end)
    fleet.rest()
    fleet.rest(1000)
    assert fleet.is_promoted()
    assert not fleet.nodes[1].replication.promotion.was_complete


def test_a_promoted_replica_does_not_wait_for_its_old_peers(
    fleet: Three,
) -> None:
    """The frames are on the disk, which is not reported to the event loop yet: the reply to
    Sentinel's transaction waits for that when the server becomes a primary without replicas."""
    fleet.append()
    fleet.rest()
    node = fleet.nodes[1]
    assert fleet.has_all()
    assert node.persistence.commits.on_disk_seq == node.persistence.commits.durable_seq
    node.persistence.commits.durable_seq -= 1
    client = node.accept()
    for words in ((b"MULTI",), NO_ONE, (b"EXEC",)):
        node.ask(client, *words)
    fleet.rest()
    assert fleet.is_promoted()
    assert not client.asked


def test_a_promoted_server_has_the_frames_on_its_disk(fleet: Three) -> None:
    begin_without_the_last_entry(fleet)
    node = fleet.nodes[1]
    journal = next(worker for worker in node.workers if worker.name == "millstream-journal")
    waiting = journal.tasks
    fleet.stopped = set()
    for _ in range(50):  # everything but the disk of server 1
        journal.tasks = type(waiting)()
        while fleet._deliverable():
            fleet._deliver()
        while node.loop.has_work():
            node.step()
        waiting.extend(journal.tasks)
    assert fleet.has_all()
    assert not fleet.is_promoted()
    journal.tasks = waiting
    fleet.rest()
    assert fleet.is_promoted()
    assert node.persistence.commits.on_disk_seq >= fleet.nodes[0].persistence.commits.last_seq


def test_a_promotion_with_a_failed_journal_is_not_complete(fleet: Three) -> None:
    begin_without_the_last_entry(fleet)
    node = fleet.nodes[1]
    node.disk.fail("write", times=None)
    fleet.stopped = set()
    fleet.pass_seconds(8)
    assert fleet.has_all()
    assert not fleet.is_promoted()
    fleet.pass_seconds(5)
    assert fleet.is_promoted()
    assert not node.replication.promotion.was_complete


def test_the_answer_to_an_old_request_does_not_count(fleet: Three) -> None:
    """The server was suspended for so long that the primary has confirmed something again."""
    begin_without_the_last_entry(fleet)
    node = fleet.nodes[1]
    node.is_frozen = True
    fleet.pass_seconds(16)
    (reply,) = fleet.append()
    assert not isinstance(reply, Error)
    node.is_frozen = False
    (link,) = [one for one in fleet.connections if one.replica is node]
    for _ in range(len(link.down.data)):  # bytes in the socket precede the timers
        if not fleet.is_promoted():
            link.down.deliver(1)
        while node.loop.ready or any(worker.tasks for worker in node.workers):
            for worker in node.workers:
                worker.drain()
            if node.loop.ready:
                task = node.loop.ready.popleft()
                task.callback(*task.args)
    fleet.stopped = set()
    fleet.rest()
    assert fleet.is_promoted()
    assert fleet.has_all()


def test_a_late_timer_is_not_the_silence_of_the_primary(fleet: Three) -> None:
    begin_without_the_last_entry(fleet)
    node = fleet.nodes[1]
    node.is_frozen = True
    fleet.pass_seconds(4)
    node.is_frozen = False
    while node.loop.has_work():  # the timers precede bytes in the socket
        node.step()
    assert not fleet.is_promoted()
    fleet.stopped = set()
    fleet.rest()
    assert fleet.is_promoted()
    assert fleet.has_all()


def test_a_sub_replica_gets_the_confirmed_writes_of_the_primary(fleet: Three) -> None:
    fleet.nodes[0].config.replicas_durable = 0  # server 1 is its only replica
    fleet.ask(1, b"REPLICAOF", b"fleet", b"7000")
    fleet.ask(2, b"REPLICAOF", b"fleet", b"7001")
    fleet.pass_seconds(3)
    fleet.stopped = {(1, "down")}
    assert isinstance(fleet.append()[0], bytes)
    replies = fleet.ask(2, *NO_ONE)
    assert not replies
    assert isinstance(fleet.append()[0], Error)
    fleet.stopped = set()
    fleet.pass_seconds(3)
    assert replies == [OK]
    assert fleet.nodes[2].replication.promotion.was_complete
    assert fleet.ask(2, b"XLEN", b"a") == [1]
    assert fleet.nodes[0].config.replicaof == "10.0.0.202 7002"
    assert fleet.append() == [Error(READONLY)]
    assert fleet.nodes[1].config.replicaof == "fleet 7000"
    assert shown(fleet, 1, "master_link_status") == "up"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_sub_replica_without_a_link_is_not_reported_complete(fleet: Three, is_late: bool) -> None:
    """The link between the others is lost, before or after the request."""
    fleet.ask(2, b"REPLICAOF", b"fleet", b"7001")
    fleet.pass_seconds(3)
    fleet.stopped = {(1, "down")}
    if is_late:
        fleet.ask(2, *NO_ONE)
    fleet.partitions = {frozenset((0, 1))}
    for one in fleet.connections:
        if one.replica is fleet.nodes[1]:
            one.cut()
            one.notify("replica")
    if not is_late:
        fleet.ask(2, *NO_ONE)
    fleet.rest()
    assert fleet.nodes[2].replication.link is None
    assert not fleet.nodes[2].replication.promotion.was_complete


def test_a_primary_refuses_writes_that_a_sub_replica_lacks(fleet: Three) -> None:
    fleet.nodes[0].config.replicas_durable = 0
    fleet.ask(2, b"REPLICAOF", b"fleet", b"7001")
    fleet.pass_seconds(3)
    fleet.stopped = {(2, "down")}
    assert isinstance(fleet.append()[0], bytes)
    assert fleet.ask(2, *NO_ONE) == []
    fleet.pass_seconds(5)
    assert fleet.nodes[2].replication.link is None
    fleet.pass_seconds(20)
    assert fleet.append() == [Error(IS_SUPERSEDED.format("10.0.0.202:7002"))]


def test_a_sub_replica_that_stays_a_replica_frees_the_primary(fleet: Three) -> None:
    fleet.nodes[0].config.replicas_durable = 0
    fleet.ask(2, b"REPLICAOF", b"fleet", b"7001")
    fleet.pass_seconds(3)
    fleet.stopped = {(1, "down")}
    fleet.ask(2, *NO_ONE)
    assert isinstance(fleet.append()[0], Error)
    fleet.ask(2, b"REPLICAOF", b"fleet", b"7001")
    assert isinstance(fleet.append()[0], bytes)


def test_another_primary_ends_a_promotion(fleet: Three) -> None:
    replies = begin_without_the_last_entry(fleet)
    again = fleet.ask(1, *NO_ONE)
    assert fleet.ask(1, b"REPLICAOF", b"fleet", b"7002") == [OK]
    assert replies == again == [Error(NOT_PROMOTED)]
    fleet.stopped = set()
    fleet.rest(1000)
    fleet.rest(20_000)
    assert not fleet.is_promoted()


def test_the_same_primary_ends_a_promotion(fleet: Three) -> None:
    replies = begin_without_the_last_entry(fleet)
    fleet.ask(1, b"REPLICAOF", b"fleet", b"7000")
    assert replies == [Error(NOT_PROMOTED)]
    fleet.stopped = set()
    fleet.rest()
    (reply,) = fleet.append()  # the primary continues at once
    assert not isinstance(reply, Error)
    fleet.rest(20_000)
    assert not fleet.is_promoted()
    assert fleet.has_all()


@pytest.mark.parametrize("has_more", [False, True])
def test_a_request_from_before_the_promotion_does_not_undo_it(fleet: Three, has_more: bool) -> None:
    """The replica has lost its link and asks for frames, the answer does not come in time, and it
    is promoted. Its request arrives after the news of that."""
    if has_more:
        fleet.stopped = {(1, "down")}
        fleet.append()
    node = fleet.nodes[1]
    for one in fleet.connections:
        if one.replica is node:
            one.cut()
            one.notify("primary")
    fleet.stopped = set()
    fleet.ask(2, b"PING")
    while fleet.held is None:
        if not (node.has_work() or fleet._deliverable()):
            fleet._advance(100)
        fleet.turn()
        links = [one for one in fleet.connections if one.replica is node and not one.is_cut]
        fleet.held = next((one for one in links if b"PSYNC" in one.up.data), None)
    old, fleet.held.closes = fleet.held, False
    assert fleet.ask(1, *NO_ONE) == [OK]
    node.replication.promotion.announce("fleet", 7000)
    fleet.rest()
    expected = [LACKS] if has_more else [Error(READONLY)]
    assert fleet.append() == expected
    fleet.held = None
    while old.up.data and not old.is_cut:
        old.up.deliver(len(old.up.data))
    fleet.pass_seconds(2)
    assert fleet.append() == expected


@pytest.mark.parametrize("host", [b"fleet", b"10.0.0.200"], ids=["other name", "known"])
def test_a_promoted_server_may_return_the_role(fleet: Three, host: bytes) -> None:
    """Sentinel does this after a REPLICAOF NO ONE that was sent by hand."""
    begin_without_the_last_entry(fleet)
    fleet.stopped = set()
    fleet.pass_seconds(3)
    (reply,) = fleet.ask(1, b"XADD", b"a", b"*", b"n", b"2")
    assert isinstance(reply, bytes)
    fleet.stopped = {(0, "down")} if host != b"fleet" else set()
    fleet.ask(1, b"XADD", b"a", b"*", b"n", b"3")
    assert fleet.ask(1, b"REPLICAOF", host, b"7000") == [OK]
    fleet.stopped = set()
    fleet.pass_seconds(3)
    assert isinstance(fleet.append()[0], bytes)
    fleet.pass_seconds(2)
    for index, node in enumerate(fleet.nodes):
        assert fleet.ask(index, b"XLEN", b"a") == [4]
        assert (node.replication.link is None) is (index == 0)


def test_an_old_primary_ordered_to_follow_stays_a_replica(fleet: Three) -> None:
    begin_without_the_last_entry(fleet)
    fleet.stopped = set()
    fleet.pass_seconds(3)
    fleet.ask(0, b"REPLICAOF", b"10.0.0.201", b"7001")
    fleet.ask(1, b"REPLICAOF", b"fleet", b"7000")
    fleet.pass_seconds(3)
    assert fleet.append() == [Error(READONLY)]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_primary_ordered_to_follow_its_replica_hands_over(
    fleet: Three, in_transaction: bool
) -> None:
    """Some exchange two servers in this order. The replica has not got the last frame yet."""
    fleet.stopped = {(1, "down")}
    fleet.append()
    order = (b"REPLICAOF", b"10.0.0.201", b"7001")
    client = fleet.nodes[0].accept()
    for words in ((b"MULTI",), order, (b"EXEC",)) if in_transaction else (order,):
        fleet.nodes[0].ask(client, *words)
    fleet.rest()
    fleet.stopped = set()
    fleet.pass_seconds(3)
    assert fleet.ask(1, *NO_ONE) == [OK]
    assert fleet.is_promoted()
    assert fleet.has_all()
    assert fleet.nodes[0].config.replicaof == "10.0.0.201 7001"
    assert fleet.ask(1, b"XLEN", b"a") == [1]


@pytest.mark.parametrize("target", [1, 2])
def test_an_order_to_follow_a_replica_replaces_a_promotion(fleet: Three, target: int) -> None:
    begin_without_the_last_entry(fleet)
    host, port = b"10.0.0.%d" % (200 + target), b"%d" % (7000 + target)
    fleet.ask(0, b"REPLICAOF", host, port)
    fleet.stopped = set()
    fleet.pass_seconds(5)
    (primary,) = [node for node in fleet.nodes if node.replication.link is None]
    assert primary.index != 0
    assert fleet.ask(primary.index, b"XLEN", b"a") == [1]


def test_a_primary_whose_replica_does_not_take_over_remains_one(fleet: Three) -> None:
    fleet.stopped = {(1, "down"), (1, "up")}
    fleet.append()
    client = fleet.nodes[0].accept()
    for words in ((b"MULTI",), (b"REPLICAOF", b"10.0.0.201", b"7001"), (b"EXEC",)):
        fleet.nodes[0].ask(client, *words)
    fleet.pass_seconds(12)
    assert fleet.nodes[0].config.replicaof == ""
    assert isinstance(fleet.append()[0], bytes)
    error = shown(fleet, 0, "repl_last_error")
    assert error == "the failover was abandoned: no replica had all frames in time"


@pytest.mark.parametrize("target", [True, False])
@pytest.mark.parametrize("stopped", ["up", "down"])
def test_a_failover_and_a_promotion_leave_one_primary(
    fleet: Three, stopped: str, target: bool
) -> None:
    fleet.stopped = {(1, stopped)}
    fleet.append()
    fleet.ask(1, *NO_ONE)
    feed = fleet.nodes[0].replication.feeds.at("10.0.0.201", 7001)
    assert feed is not None
    words = (b"TO", feed.host.encode(), b"%d" % feed.port) if target else ()
    fleet.ask(0, b"FAILOVER", *words)
    fleet.stopped = set()
    fleet.pass_seconds(5)
    replies = fleet.append()
    for index in (0, 2):
        fleet.ask(index, b"REPLICAOF", b"fleet", b"7001")
    fleet.pass_seconds(5)
    confirmed = 1 + sum(not isinstance(reply, Error) for reply in replies)
    assert fleet.ask(1, b"XLEN", b"a") == [confirmed]
    assert [node.replication.link is None for node in fleet.nodes] == [False, True, False]


def test_replicas_durable_may_change_during_a_promotion() -> None:
    fleet = Three()
    begin_without_the_last_entry(fleet)
    primary = fleet.nodes[0]
    for count in (2, 1):
        primary.config.replicas_durable = count
        primary.replication.restrictions.update()
    assert fleet.ask(0, b"XLEN", b"a") == [1]


def test_a_client_whose_wait_was_ended_gets_no_promotion_notice(fleet: Three) -> None:
    fleet.stopped = {(1, "down")}
    node = fleet.nodes[1]
    client = node.accept()
    replies = fleet.replies[1, client.id] = []
    node.ask(client, *NO_ONE)
    fleet.rest()
    fleet.ask(1, b"CLIENT", b"UNBLOCK", b"%d" % client.id)
    assert replies == [Error(PROMOTING)]


def test_the_last_order_of_a_batch_counts(fleet: Three) -> None:
    """The role changes after a transaction; an order after it is newer."""
    node = fleet.nodes[1]
    client = node.accept()
    words = [(b"MULTI",), NO_ONE, (b"EXEC",), (b"REPLICAOF", b"fleet", b"7002")]
    client.asked += words
    node.executor.feed(client, b"".join(encode_command(one) for one in words))
    fleet.rest(1000)
    assert node.replication.link is not None
    assert node.replication.link.port == 7002
    assert node.config.replicaof == "fleet 7002"


def test_a_server_that_stops_is_not_promoted(fleet: Three) -> None:
    begin_without_the_last_entry(fleet)
    fleet.nodes[1].replication.stop()
    fleet.rest(20_000)
    assert not fleet.is_promoted()


def test_a_frame_that_cannot_be_applied_ends_a_promotion(
    fleet: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(keyspace: object, payload: bytes) -> int:
        raise EffectError(0, "set by the test")

    replies = begin_without_the_last_entry(fleet)
    monkeypatch.setattr(receiver, "apply_effects", refuse)
    fleet.stopped = set()
    fleet.rest()
    assert not fleet.is_promoted()
    assert replies == [Error(NOT_PROMOTED)]
    assert fleet.nodes[1].config.replicaof == "fleet 7000"

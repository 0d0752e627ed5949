"""REPLICAOF NO ONE at a replica whose primary works: nothing that was confirmed is lost."""

from __future__ import annotations

import pytest
from tests.sim.fleet import Fleet
from tests.sim.fleet_node import FleetClient, FleetNode
from tests.sim.net import Connection
from tests.support.fakedisk import FakeDisk
from tests.support.resp import Error, Reply, Simple, encode_command

from millstream.commands.admin.replication import NOT_PROMOTED, PROMOTING
from millstream.commands.runtime.effects import EffectError
from millstream.server.monitor.info_lines import fields_of
from millstream.server.replication import applying
from millstream.server.replication.restrictions import PROMOTED_ELSEWHERE

NO_ONE = (b"REPLICAOF", b"NO", b"ONE")
OK = Simple("OK")


class Three(Fleet):
    """Servers 1 and 2 follow server 0, whose replies wait for one of them. `stopped` are pipes
    that deliver nothing: the number of the replica, and "up" or "down"."""

    def __init__(self, replicas_durable: int = 1) -> None:
        super().__init__(5, 0)
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
        self.replies: dict[tuple[int, int], list[Reply]] = {}
        self._primary = self.nodes[0]
        self._settle()
        self.rest()

    def _deliverable(self) -> list[tuple[Connection, str]]:
        found = super()._deliverable()
        return [(one, way) for one, way in found if (one.replica.index, way) not in self.stopped]

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
        return self.nodes[1].replication.following is None

    def has_all(self) -> bool:
        """Whether server 1 has all frames of server 0."""
        return self.nodes[1].persistence.last_seq >= self.nodes[0].persistence.last_seq


@pytest.fixture
def fleet() -> Three:
    return Three()


def shows_promotion(fleet: Three, index: int) -> bool:
    """INFO of the server says that it, or a replica of it, is being promoted."""
    parts = fleet.nodes[index].replication.info()
    return fields_of(parts)["promotion_in_progress"] == 1


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
        fleet.ask(promoted, *NO_ONE)
        end = fleet.nodes[promoted].persistence.frame_bytes + 1
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


def test_a_promotion_waits_for_what_another_replica_has_confirmed(fleet: Three) -> None:
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
    seq = fleet.nodes[0].persistence.last_seq
    assert not shows_promotion(fleet, 0)
    fleet.ask(1, *NO_ONE)
    assert shows_promotion(fleet, 1)
    fleet.stopped = {(1, "down")}
    fleet.rest()
    assert shows_promotion(fleet, 0)
    assert fleet.nodes[0].replication.synced_on(seq)
    assert not replies
    assert fleet.append() == [Error(PROMOTED_ELSEWHERE)]


def test_the_primary_continues_when_no_server_directs_it_to_another(fleet: Three) -> None:
    begin_without_the_last_entry(fleet)
    fleet.stopped = set()
    fleet.rest()
    for _ in range(2):
        assert fleet.append() == [Error(PROMOTED_ELSEWHERE)]
        fleet.pass_seconds(16)
    (reply,) = fleet.append()
    assert not isinstance(reply, Error)


def test_without_replicas_durable_the_primary_continues_at_once() -> None:
    fleet = Three(replicas_durable=0)
    begin_without_the_last_entry(fleet)
    fleet.stopped = set()
    fleet.rest()
    assert fleet.is_promoted()
    assert fleet.has_all()
    (reply,) = fleet.append()
    assert not isinstance(reply, Error)


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
    """The primary sends beats, and never says that the replica has everything."""
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
            one.tell(end)
    fleet.rest()
    fleet.rest(1000)
    assert fleet.is_promoted()
    assert not fleet.nodes[1].replication.promotion.was_complete


def test_what_waited_for_the_disk_of_a_replica_does_not_wait_for_replicas_of_the_primary(
    fleet: Three,
) -> None:
    """The frames are on the disk, and the event loop is not told yet: the reply to Sentinel's
    transaction waits for that when the server becomes a primary without replicas."""
    fleet.append()
    fleet.rest()
    node = fleet.nodes[1]
    assert fleet.has_all()
    assert node.persistence.on_disk_seq == node.persistence.durable_seq
    node.persistence.durable_seq -= 1
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
    assert node.persistence.on_disk_seq >= fleet.nodes[0].persistence.last_seq


def test_a_server_whose_journal_has_failed_is_not_promoted_as_complete(fleet: Three) -> None:
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
    for _ in range(len(link.down.data)):  # what is in the socket comes before the timers
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
    while node.loop.has_work():  # the timers come before what is in the socket
        node.step()
    assert not fleet.is_promoted()
    fleet.stopped = set()
    fleet.rest()
    assert fleet.is_promoted()
    assert fleet.has_all()


def test_a_replica_of_a_replica_is_not_told_that_it_has_all(fleet: Three) -> None:
    fleet.ask(2, b"REPLICAOF", b"fleet", b"7001")
    fleet.pass_seconds(3)
    fleet.ask(2, *NO_ONE)
    fleet.rest()
    assert fleet.nodes[2].replication.following is None
    assert not fleet.nodes[2].replication.promotion.was_complete


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


def test_a_promoted_server_that_is_a_replica_again_holds_nothing_back(fleet: Three) -> None:
    begin_without_the_last_entry(fleet)
    fleet.stopped = set()
    fleet.rest()
    assert fleet.is_promoted()
    fleet.ask(1, b"REPLICAOF", b"fleet", b"7000")
    fleet.pass_seconds(3)
    (reply,) = fleet.append()
    assert not isinstance(reply, Error)


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
    assert [node.replication.following is None for node in fleet.nodes] == [False, True, False]


def test_replicas_durable_may_change_during_a_promotion(fleet: Three) -> None:
    begin_without_the_last_entry(fleet)
    primary = fleet.nodes[0]
    for count in (2, 1):
        primary.config.replicas_durable = count
        primary.replication.restrictions.update()
    assert fleet.ask(0, b"XLEN", b"a") == [1]


def test_a_client_whose_wait_is_ended_is_not_told_that_the_server_is_promoted(fleet: Three) -> None:
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
    assert node.replication.following is not None
    assert node.replication.following.port == 7002
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
        raise EffectError(0, "the test says so")

    replies = begin_without_the_last_entry(fleet)
    monkeypatch.setattr(applying, "apply_effects", refuse)
    fleet.stopped = set()
    fleet.rest()
    assert not fleet.is_promoted()
    assert replies == [Error(NOT_PROMOTED)]
    assert fleet.nodes[1].config.replicaof == "fleet 7000"

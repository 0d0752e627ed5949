"""A shard of a few servers: promises, terms, and what is confirmed, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.fleet_node import FleetClient
from tests.sim.terms_fleet import SECRET, TermsFleet, TermsNode, id_of_node, promise_words
from tests.support.resp import Error, Reply, Simple

from millstream.commands.admin.cluster_peers import ReturnRequest
from millstream.commands.admin.replication import Acknowledged
from millstream.errors import CommandError
from millstream.server.cluster.peers import WRONG_SECRET

NO_REPLY = "no reply"
ADD = b"XADD", b"s", b"*", b"n", b"1"
READ = b"XRANGE", b"s", b"-", b"+"
DOWN = "CLUSTERDOWN The cluster is down"
READONLY = "READONLY You can't write against a read only replica."


class Shard(TermsFleet):
    """Works, and gets orders only from the test; the first server leads term 1."""

    def __init__(self, size: int = 3, durable: int = 1) -> None:
        self.sizes = ((size, durable),)
        self.replies: dict[tuple[bytes, ...], Reply] = {}
        self.answers = 0
        super().__init__(1)
        self.node_timeout_ms = 5000
        for node in self.nodes:
            node.start()
        for node in self.members:
            self._order(node, 1)
        self.wait()

    def answered(self, client: FleetClient, words: tuple[bytes, ...], reply: Reply) -> None:
        self.replies[words] = reply
        self.answers += 1

    def wait(self, ms: int = 1500) -> None:
        for _ in range(ms // 100):
            self.rest(100)

    def ask(self, index: int, *words: bytes, client: FleetClient | None = None) -> object:
        """The reply within 300 milliseconds; NO_REPLY without one."""
        node = self.members[index]
        self.replies.pop(words, None)
        node.ask(client or node.accept(), *words)
        self.wait(300)
        reply = self.replies.get(words, NO_REPLY)
        return reply.text if isinstance(reply, Error) else reply

    def promise(self, index: int, term: int) -> object:
        client = self.members[index].accept()
        assert self.ask(index, b"CLUSTER", b"PEER", SECRET, client=client) == Simple("OK")
        return self.ask(index, *promise_words(term, index), client=client)

    def elect(self, index: int, term: int) -> TermsNode:
        """Only the new primary learns of it."""
        self.primaries[term] = index
        self._order(self.members[index], term)
        return self.members[index]

    def replace_primary(self) -> TermsNode:
        """The other two servers promise term 2; the second one leads it, and the third follows."""
        self.promise(1, 2)
        self.promise(2, 2)
        new = self.elect(1, 2)
        self._order(self.members[2], 2)
        return new

    def cut_off(self, one: int, other: int) -> None:
        """These two can no longer connect, and the replicas lose all links."""
        self.partitions.add(frozenset((one, other)))
        for link in self.connections:
            link.cut()
            link.notify("replica")

    def length(self, index: int) -> int:
        stream = self.nodes[index].keyspace.databases[0].stream(b"s")
        return 0 if stream is None else len(stream)


def is_entry(reply: object) -> bool:
    return isinstance(reply, bytes) and b"-" in reply


def test_an_old_primary_confirms_nothing_that_the_new_one_lacks() -> None:
    shard = Shard()
    assert is_entry(shard.ask(0, *ADD))
    shard.partitions = {frozenset((0, 1)), frozenset((0, 2))}
    [term, line, number] = shard.promise(1, 2)  # type: ignore[misc]
    assert (term, number) == (1, 2)
    assert line.decode() == shard.nodes[0].keyspace.histories[-1][0]
    assert shard.promise(2, 2) == [term, line, number]
    assert shard.ask(0, *ADD) == NO_REPLY  # it does not know of the promises
    shard.wait(6000)
    assert shard.ask(0, *ADD) == DOWN
    assert len(shard.ask(1, *READ)) == 1  # type: ignore[arg-type]
    new = shard.elect(1, 2)
    assert new.keyspace.line_terms[new.keyspace.histories[-1][0]] == 2  # at once
    assert shard.ask(1, *READ) == DOWN  # no other member has that frame
    shard._order(shard.members[2], 2)
    shard.wait()
    assert is_entry(shard.ask(1, *ADD))
    assert shard.ask(0, *ADD) == DOWN
    shard.partitions.clear()
    shard._order(shard.members[0], 2)
    shard.wait()
    assert [shard.length(index) for index in range(3)] == [2, 2, 2]
    assert shard.ask(0, *ADD) == READONLY
    assert shard.nodes[0].replication.totals.rewinds == 1


def test_a_primary_that_was_suspended_asks_its_members_first() -> None:
    """They may have elected another one, whatever it has received of them before."""
    shard = Shard()
    assert is_entry(shard.ask(0, *ADD))
    shard.nodes[0].is_frozen = True
    shard.replace_primary()
    shard.wait(6000)
    assert is_entry(shard.ask(1, *ADD))
    assert shard.ask(0, *READ) == NO_REPLY  # it is the first thing that it does
    shard.nodes[0].is_frozen = False
    shard.wait()
    assert shard.replies.get(READ, NO_REPLY) == NO_REPLY
    assert shard.ask(0, *READ) == DOWN


def test_a_primary_continues_after_a_suspension() -> None:
    shard = Shard()
    shard.nodes[0].is_frozen = True
    shard.wait(6000)
    client = shard.nodes[0].accept()
    assert shard.ask(0, *ADD, client=client) == NO_REPLY
    shard.nodes[0].is_frozen = False
    shard.wait(3000)
    assert is_entry(shard.replies[ADD])
    assert is_entry(shard.ask(0, *ADD))


def test_signs_of_life_are_those_of_links() -> None:
    shard = Shard()
    assert is_entry(shard.ask(0, *ADD))
    shard.wait()
    primary, replica, other = (node.terms for node in shard.members)
    now_ms = shard.nodes[0].replication.machine.clock()
    for one, node in ((primary, 1), (primary, 2), (replica, 0), (other, 0)):
        sign = one.sign_of(id_of_node(node))
        assert sign is not None
        assert (sign.frame, sign.is_recent) == (2, True)
        assert now_ms - 1100 <= sign.heard_ms <= now_ms + 100
    assert replica.sign_of(id_of_node(2)) is None
    shard.nodes[0].is_frozen = True
    shard.wait(6000)
    sign = replica.sign_of(id_of_node(0))
    assert sign is not None
    assert (sign.frame, sign.is_recent) == (2, False)
    assert sign.heard_ms <= now_ms + 100


def test_earlier_frames_count_with_the_first_of_the_term() -> None:
    """A server that has frames of a term between these two could still be elected."""
    shard = Shard()
    assert is_entry(shard.ask(0, *ADD))
    new = shard.replace_primary()
    commits, confirming = new.persistence.commits, new.terms.confirming
    confirming.hold_point.seq = 1  # as if it had not heard of more
    while not any(feed.is_online for feed in new.replication.feeds):
        shard._advance(1)
        shard.turn()
    client = next(client for client in new.clients.values() if client.feed is not None)
    new.replication.acknowledge(client, Acknowledged(2, 2, 0, 2))
    assert confirming.hold_point.seq == 1
    new.replication.acknowledge(client, Acknowledged(commits.last_seq, commits.last_seq, 0, 1))
    assert confirming.hold_point.seq == 1  # of another term
    new.replication.acknowledge(client, Acknowledged(commits.last_seq, commits.last_seq, 0, 2))
    assert confirming.hold_point.seq == commits.last_seq == 3


def test_a_primary_that_has_lost_frames_of_its_term_stops() -> None:
    """A member has them, and would discard them."""
    shard = Shard()
    assert is_entry(shard.ask(0, *ADD))
    node, earlier = shard.nodes[0], shard.nodes[0].disk.copy()
    assert is_entry(shard.ask(0, *ADD))
    assert shard.length(1) == 2
    shard._restart(node, earlier)
    shard.wait()
    primary = shard.members[0]
    shard._order(primary, 1)
    shard.wait()
    assert not primary.terms.is_leading
    assert primary.terms.promised == 2
    assert [shard.length(1), shard.length(2)] == [2, 2]


def test_a_primary_leads_its_term_again_after_a_restart() -> None:
    shard = Shard()
    assert is_entry(shard.ask(0, *ADD))
    shard._restart(shard.nodes[0], shard.nodes[0].disk.copy())
    shard._order(shard.members[0], 1)
    shard.wait()
    assert is_entry(shard.ask(0, *ADD))
    assert [shard.length(index) for index in range(3)] == [2, 2, 2]


def test_a_promise_refuses_lower_terms_also_after_a_crash() -> None:
    shard = Shard()
    assert isinstance(shard.promise(1, 7), list)
    assert shard.promise(1, 6) == "ERR term 7 was promised already"
    shard._restart(shard.nodes[1], shard.nodes[1].disk.after_crash(1))
    member = shard.members[1].terms
    assert member.promised == 7
    with pytest.raises(CommandError, match="term 7 was promised already"):
        member.follow("fleet", 7000, id_of_node(0), 6, 1)
    with pytest.raises(CommandError, match="term 7 was promised already"):
        member.lead(6, [], 1)
    assert isinstance(shard.promise(1, 7), list)  # of the same term, again


def test_a_crash_before_a_promise_is_stored_leaves_it_unanswered() -> None:
    shard = Shard()
    node = shard.members[1]
    node.disk.fail("rename", times=None)
    assert shard.promise(1, 2) == NO_REPLY
    assert node.terms.promised == 2
    assert node.replication.link is not None
    assert not node.replication.link.is_connected
    node.disk.mend()
    shard.wait()
    assert shard.replies[promise_words(2, 1)] is not None


def test_following_a_term_is_a_promise_of_it() -> None:
    shard = Shard()
    shard.primaries[5] = 0
    shard.nodes[1].disk.fail("rename", times=None)  # the promise cannot be stored
    shard._order(shard.members[0], 5)
    shard._order(shard.members[1], 5)
    shard.wait()
    assert shard.ask(0, *ADD) == DOWN
    shard.nodes[1].disk.mend()
    shard.wait()
    assert is_entry(shard.ask(0, *ADD))
    shard.partitions = {frozenset((0, 1))}
    shard.primaries[6] = 0
    shard._order(shard.members[1], 6)
    shard.wait()
    shard._restart(shard.nodes[1], shard.nodes[1].disk.after_crash(1))
    assert shard.members[1].terms.promised == 6


def test_the_standing_of_a_member_is_that_of_its_disk() -> None:
    shard = Shard()
    node = shard.members[1]
    before = node.terms.standing()
    shard.nodes[0].ask(shard.nodes[0].accept(), *ADD)
    while node.persistence.commits.last_seq == before.number:
        shard._advance(1)
        while shard.nodes[0].has_work():
            shard.nodes[0].step()
        if shard._deliverable():
            shard._deliver()
        while (timer := node.loop.take()) is not None:  # its workers do nothing
            timer.callback(*timer.args)
    assert node.terms.standing() == before
    shard.wait()
    assert node.terms.standing() == before._replace(number=before.number + 1)


def test_a_node_promises_only_in_its_own_name() -> None:
    """An old address may be that of another member by now, which would count as two."""
    shard = Shard()
    client = shard.members[1].accept()
    shard.ask(1, b"CLUSTER", b"PEER", SECRET, client=client)
    refusal = f"ERR this server is another node, {id_of_node(1)}"
    assert shard.ask(1, *promise_words(2, 2), client=client) == refusal
    assert shard.members[1].terms.promised == 1


def test_only_nodes_may_ask_for_promises() -> None:
    shard = Shard()
    unknown = "ERR unknown subcommand 'PROMISE'. Try CLUSTER HELP."
    assert shard.ask(1, *promise_words(2, 1)) == unknown
    client = shard.nodes[1].accept()
    wrong = shard.ask(1, b"CLUSTER", b"PEER", b"guess", client=client)
    assert wrong == WRONG_SECRET
    assert shard.ask(1, *promise_words(2, 1), client=client) == unknown
    shard.ask(1, b"CLUSTER", b"PEER", SECRET, client=client)
    zero = shard.ask(1, *promise_words(0, 1), client=client)
    assert zero == "ERR the number of a term is 1 or more"
    assert shard.members[1].terms.promised == 1


@pytest.mark.parametrize("name", ["PROMISE", "RELAY", "COPYSLOTS", "ACKSLOTS", "RETURNSLOTS"])
def test_others_do_not_learn_how_many_words_nodes_send(name: str) -> None:
    shard = Shard()
    unknown = f"ERR unknown subcommand '{name}'. Try CLUSTER HELP."
    wrong = f"ERR wrong number of arguments for 'cluster|{name.lower()}' command"
    client = shard.nodes[0].accept()
    words = b"CLUSTER", name.encode(), b"x", b"y"
    for asked in (words[:2], words):
        assert shard.ask(0, *asked, client=client) == unknown
    shard.ask(0, b"CLUSTER", b"PEER", SECRET, client=client)
    refusal = shard.ask(0, *words, client=client)
    assert refusal == (unknown if name in ("COPYSLOTS", "ACKSLOTS") else wrong)
    missing = shard.ask(0, b"CLUSTER", b"PEER")
    assert missing == "ERR wrong number of arguments for 'cluster|peer' command"


def test_only_nodes_may_ask_for_slots_that_have_left() -> None:
    shard = Shard()
    words = b"CLUSTER", b"RETURNSLOTS", b"1f", id_of_node(0).encode(), b"1", b"2"
    unknown = "ERR unknown subcommand 'RETURNSLOTS'. Try CLUSTER HELP."
    assert shard.ask(0, *words) == unknown
    client = shard.nodes[0].accept()
    shard.ask(0, b"CLUSTER", b"PEER", SECRET, client=client)
    assert "does not know its cluster yet" in str(shard.ask(0, *words, client=client))
    asked: list[ReturnRequest] = []
    shard.members[0].cluster.peers.give_back = asked.append
    assert shard.ask(0, *words, client=client) == Simple("OK")
    assert asked == [ReturnRequest("1f", id_of_node(0), 1, 2)]


def test_a_replica_shows_a_frame_when_it_is_confirmed() -> None:
    shard = Shard(durable=2)
    shard.nodes[2].is_frozen = True
    assert shard.ask(0, *ADD) == NO_REPLY
    assert shard.length(1) == 1
    assert shard.ask(1, *READ) == NO_REPLY
    shard.nodes[2].is_frozen = False
    shard.wait()
    assert is_entry(shard.replies[ADD])
    assert len(shard.replies[READ]) == 1  # type: ignore[arg-type]


def test_without_a_link_unconfirmed_frames_are_not_read() -> None:
    shard = Shard(durable=2)
    assert is_entry(shard.ask(0, *ADD))
    shard.partitions = {frozenset((0, 1)), frozenset((0, 2))}
    for one in shard.connections:
        one.cut()
    shard.wait()
    assert len(shard.ask(1, *READ)) == 1  # type: ignore[arg-type]
    shard.partitions = {frozenset((0, 2))}
    shard.wait()
    assert shard.ask(0, *ADD) == NO_REPLY  # of two members, one has it
    shard.cut_off(0, 1)
    assert shard.ask(1, *READ) == DOWN


def test_members_count_by_their_ids() -> None:
    """A server that is not in the list follows, and does not count."""
    shard = Shard()
    shard.members[0].terms.lead(1, [id_of_node(0), id_of_node(1)], 1)
    shard.nodes[1].is_frozen = True
    assert shard.ask(0, *ADD) == NO_REPLY
    assert shard.length(2) == 1
    assert shard.members[0].terms.confirming_members() == 1
    shard.members[0].terms.lead(1, [id_of_node(0), id_of_node(2)], 1)
    assert is_entry(shard.ask(0, *ADD))


def test_a_primary_without_members_confirms_in_its_lease() -> None:
    shard = Shard(durable=0)
    primary = shard.members[0]
    assert shard.ask(0, *ADD) == DOWN
    primary.extend_lease(500)
    assert is_entry(shard.ask(0, *ADD))
    shard.rest(400)
    assert shard.ask(0, *READ) == NO_REPLY  # it has run before the server noticed
    primary.extend_lease(500)
    assert len(shard.replies[READ]) == 1  # type: ignore[arg-type]
    shard.wait()
    assert shard.ask(0, *READ) == DOWN
    assert not primary.terms.may_confirm()


def test_a_primary_without_members_serves_reads_in_its_lease() -> None:
    shard = Shard()
    assert is_entry(shard.ask(0, *ADD))
    primary = shard.members[0]
    shard.partitions = {frozenset((0, 1)), frozenset((0, 2))}
    shard.wait(6000)
    assert shard.ask(0, *READ) == DOWN
    primary.extend_lease(2000)
    assert len(shard.ask(0, *READ)) == 1  # type: ignore[arg-type]
    assert shard.ask(0, *ADD) == DOWN
    primary.terms.confirming.lease.until_ms = 0  # it ends in this moment
    client = primary.accept()
    assert shard.ask(0, *READ, client=client) == NO_REPLY
    shard.wait()
    assert shard.replies.get(READ) is None
    assert shard.ask(0, *READ) == DOWN
    shard.partitions.clear()
    shard.replies.clear()
    shard.wait(3000)
    assert len(shard.replies[READ]) == 1  # type: ignore[arg-type]
    assert is_entry(shard.ask(0, *ADD))


def test_reads_in_a_lease_show_nothing_that_is_not_confirmed() -> None:
    shard = Shard()
    shard.members[0].extend_lease(60_000)
    shard.partitions = {frozenset((0, 1)), frozenset((0, 2))}
    assert shard.ask(0, *ADD) == NO_REPLY
    assert shard.ask(0, *READ) == NO_REPLY
    shard.wait(6000)
    assert shard.replies.get(READ) is None
    assert shard.ask(0, *READ) == DOWN


def test_a_lease_ends_while_the_machine_is_suspended() -> None:
    shard = Shard(2, 0)
    primary = shard.members[0]
    primary.extend_lease(5000)
    assert is_entry(shard.ask(0, *ADD))
    primary.suspend()
    shard.wait(6000)
    steady_ms = primary.steady_ms() - 6000
    primary.resume()
    assert primary.steady_ms() <= steady_ms
    assert shard.ask(0, *READ) == NO_REPLY  # it has run before the server noticed
    shard.wait()
    assert shard.ask(0, *READ) == DOWN


def test_a_primary_on_a_suspended_machine_asks_its_members_first() -> None:
    shard = Shard()
    assert is_entry(shard.ask(0, *ADD))
    shard.members[0].suspend()
    shard.replace_primary()
    shard.wait(6000)
    assert is_entry(shard.ask(1, *ADD))
    shard.members[0].resume()
    assert shard.ask(0, *READ) == NO_REPLY
    assert shard.ask(0, *READ) == DOWN


def test_a_lease_that_ends_holds_the_rest_of_the_replies() -> None:
    """One turn of the loop sends a limited number of replies."""
    shard = Shard(durable=0)
    primary = shard.members[0]
    primary.extend_lease(10_000)
    before = shard.answers
    for _ in range(600):
        primary.ask(primary.accept(), *ADD)
    while shard.answers == before:
        primary.step()
    sent = shard.answers
    assert sent < before + 600
    primary.terms.confirming.lease.until_ms = 0  # it ends in this moment
    while primary.has_work():
        primary.step()
    assert shard.answers == sent
    primary.extend_lease(10_000)
    shard.rest()
    assert shard.answers == before + 600


def test_a_primary_needs_its_lease_before_another_joins() -> None:
    """It may not learn that one has."""
    shard = Shard(1, 0)
    primary = shard.members[0]
    primary.terms.require_lease(True)
    assert shard.ask(0, *ADD) == DOWN
    primary.extend_lease(500)
    assert is_entry(shard.ask(0, *ADD))
    shard.wait()
    assert shard.ask(0, *ADD) == DOWN


def test_a_shard_of_one_confirms_alone() -> None:
    shard = Shard(1, 0)
    assert is_entry(shard.ask(0, *ADD))
    assert shard.members[0].replication.feeds.backlog is None  # no replica needs the frames


def test_no_frame_after_a_limit_is_confirmed() -> None:
    shard = Shard()
    terms = shard.members[0].terms
    assert terms.confirming.limit(terms.last_seq)
    assert shard.ask(0, *ADD) == NO_REPLY
    assert shard.ask(0, *READ) == NO_REPLY
    assert shard.length(1) == 1
    shard.wait()
    assert not shard.replies
    terms.confirming.end_limit()
    shard.wait()
    assert is_entry(shard.replies[ADD])
    assert len(shard.replies[READ]) == 1  # type: ignore[arg-type]
    alone = Shard(1, 0)
    assert not alone.members[0].terms.confirming.limit(0)
    assert is_entry(alone.ask(0, *ADD))


def test_members_acknowledge_what_is_on_their_disks() -> None:
    shard = Shard()
    told: list[Acknowledged] = []
    primary = shard.members[0].replication
    acknowledge = primary.acknowledge

    def note(client: Any, one: Acknowledged) -> None:
        told.append(one)
        acknowledge(client, one)

    primary.acknowledge = note  # type: ignore[method-assign]
    for _ in range(5):
        assert is_entry(shard.ask(0, *ADD))
    assert len(told) >= 10
    assert {one.applied - one.synced for one in told} == {0}


def test_a_primary_whose_journal_has_failed_confirms_nothing() -> None:
    shard = Shard()
    shard.nodes[0].disk.fail("write", times=None)
    shard.ask(0, *ADD)
    shard.wait()
    assert shard.ask(0, *READ) == DOWN
    assert [shard.length(index) for index in (1, 2)] == [0, 0]
    assert shard.members[1].terms.silence_ms() is not None
    shard.wait(6000)
    assert shard.members[1].terms.silence_ms() is None  # so that it stands for election


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "ERR only members of its shard can be replicas of this server"),
        ([b"node", b"0" * 40, b"term", b"2"], "NOMASTERLINK this server is the primary of term 1"),
        (
            [b"node", b"0" * 40, b"primary", b"5" * 40, b"term", b"1"],
            f"NOMASTERLINK this server is another node, {id_of_node(0)}",
        ),
    ],
)
def test_only_members_of_the_term_can_be_replicas(words: list[bytes], error: str) -> None:
    shard = Shard()
    client = shard.nodes[0].accept()
    known = [b"capa", b"millstream-2", b"databases", b"16", b"histories", b"", *words]
    shard.ask(0, b"REPLCONF", *known, client=client)
    assert shard.ask(0, b"PSYNC", b"?", b"1", client=client) == error
    shard.ask(1, b"REPLCONF", *known, client=(client := shard.nodes[1].accept()))
    replica = "NOMASTERLINK this server is not the primary of its shard"
    assert shard.ask(1, b"PSYNC", b"?", b"1", client=client) == replica


def test_a_process_that_connects_after_a_later_one_of_its_node() -> None:
    """Its directory is a copy, or the other one's is."""
    shard = Shard()
    node, primary = id_of_node(1).encode(), id_of_node(0).encode()
    known = [b"capa", b"millstream-2", b"databases", b"16", b"histories", b"", b"node", node]
    known += [b"primary", primary, b"term", b"1", b"start", b"copy"]
    client = shard.nodes[0].accept()
    shard.ask(0, b"REPLCONF", *known, client=client)
    shard.ask(0, b"PSYNC", b"?", b"1", client=client)
    shard.wait()
    member = shard.members[1].terms
    assert member.is_copied
    link = shard.nodes[1].replication.link
    assert link is not None
    assert not link.is_connected
    for order in (
        lambda: member.promise(5),
        lambda: member.follow("fleet", shard.nodes[0].port, id_of_node(0), 1, 1),
        member.standing,
    ):
        with pytest.raises(CommandError, match="one of the data directories is a copy"):
            order()


def test_no_node_at_an_old_address_is_followed() -> None:
    """It may lead the same term, and its data would replace that of the member."""
    shard = Shard()
    assert is_entry(shard.ask(0, *ADD))
    shard.elect(0, 2)
    member, port = shard.members[1].terms, shard.nodes[0].port
    member.follow("fleet", port, id_of_node(7), 2, 1)
    shard.wait()
    link = shard.nodes[1].replication.link
    assert link is not None
    assert not link.is_connected
    assert shard.length(1) == 1
    shard.primaries[3] = 0
    shard._order(shard.members[0], 3)
    shard._order(shard.members[1], 3)
    shard.wait()
    assert is_entry(shard.ask(0, *ADD))
    assert shard.length(1) == 2


def test_a_member_that_lost_its_history_promises_nothing() -> None:
    """Its frames have no number that the others know: a choice by numbers could lose some."""
    shard = Shard()
    assert is_entry(shard.ask(0, *ADD))
    shard.nodes[1].replication.data_changed()
    assert shard.promise(1, 2) == "ERR the data of this server may be wrong or incomplete"


DOWN_TO_WRITES = "CLUSTERDOWN The cluster is down and only accepts read commands"
HELD = b"XADD", b"s", b"*", b"n", b"2"


def test_reads_are_allowed_without_members_that_confirm() -> None:
    shard = Shard()
    assert is_entry(shard.ask(0, *ADD))
    shard.partitions = {frozenset((0, 1)), frozenset((0, 2))}
    assert shard.ask(0, *HELD) == NO_REPLY
    confirming = shard.members[0].terms.confirming
    ended: list[bool] = []
    confirming.when_reads_are_shown = lambda: ended.append(True)
    confirming.allow_reads(True)
    assert shard.ask(0, *READ) == NO_REPLY  # the server does not know yet that it is down
    assert shard.ask(0, *HELD) == NO_REPLY
    shard.wait(6000)
    assert shard.ask(0, *ADD) == DOWN_TO_WRITES
    assert len(shard.ask(0, *READ)) == 3  # type: ignore[arg-type]
    assert shard.replies.get(HELD) is None
    confirming.allow_reads(False)
    assert shard.ask(0, *READ) == DOWN
    confirming.allow_reads(True)
    shard.wait(100)
    assert len(shard.ask(0, *READ)) == 3  # type: ignore[arg-type]
    assert shard.replies.get(HELD) is None
    assert ended == [True, True]
    shard.partitions.clear()
    shard.wait(3000)
    assert is_entry(shard.replies[HELD])
    assert is_entry(shard.ask(0, *ADD))
    shard.partitions = {frozenset((0, 1)), frozenset((0, 2))}
    assert shard.ask(0, *READ) is not NO_REPLY
    assert shard.ask(0, *ADD) == NO_REPLY  # held again


def test_a_member_that_has_left_answers() -> None:
    """Its unconfirmed frames are never confirmed here, so no reply may wait for that."""
    shard = Shard()
    assert is_entry(shard.ask(0, *ADD))
    left = shard.members[1]
    left.terms.confirming.hold_point.seq = 1  # as if it had not heard of more
    left.terms.confirming._told_seq = 0
    client = left.accept()
    left.ask(client, *READ)
    left.executor.end_tick()
    assert left.executor.outbox.held_count == 1
    left.terms.leave()
    assert client.closed or client.is_stopped()
    assert left.executor.outbox.held_count == 0
    assert shard.ask(1, *READ) == DOWN
    assert shard.ask(1, b"MULTI") == Simple("OK")
    shard._order(left, 1)  # it joins again
    shard.wait()
    assert len(shard.ask(1, *READ)) == 1  # type: ignore[arg-type]


def test_reads_are_allowed_without_a_lease() -> None:
    shard = Shard(durable=0)
    primary = shard.members[0]
    primary.extend_lease(500)
    assert is_entry(shard.ask(0, *ADD))
    primary.terms.confirming.allow_reads(True)
    shard.wait()
    assert len(shard.ask(0, *READ)) == 1  # type: ignore[arg-type]
    assert shard.ask(0, *ADD) == DOWN_TO_WRITES
    primary.extend_lease(500)
    assert is_entry(shard.ask(0, *ADD))


def test_reads_are_allowed_at_a_replica_without_a_link() -> None:
    shard = Shard(durable=2)
    assert is_entry(shard.ask(0, *ADD))
    shard.partitions = {frozenset((0, 2))}
    assert shard.ask(0, *ADD) == NO_REPLY  # of two members, one has it
    shard.cut_off(0, 1)
    assert shard.ask(1, *READ) == DOWN
    shard.members[1].terms.confirming.allow_reads(True)
    assert len(shard.ask(1, *READ)) >= 1  # type: ignore[arg-type]
    assert shard.ask(1, *ADD) == READONLY

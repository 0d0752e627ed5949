"""Plays seeds of a shard: servers of which one is the primary in each term, and elections.

The fleet holds what an etcd would: the primary of each term, and a lease. It gives the orders,
late, twice, out of order or never, and it carries out elections in steps: promises of the members,
the choice of the one with the greatest (term, number), one transaction. Machines lose their power,
processes are suspended, links are cut; a primary that was replaced does not know of it.

With N >= 1: what a client has seen, in a reply to a write or a read, of the primary or a replica,
is on the disks of N + 1 servers at that moment, and in the data of every later primary. With any N:
a request that began after a primary of a term had confirmed something is not confirmed by the
primary of a lower term.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple, cast

from tests.sim.durable_fleet import APPENDS, _has_stored
from tests.sim.fleet import Fleet, Frame, _line_at, has_frame
from tests.sim.fleet_node import FleetClient, FleetConfig, FleetNode
from tests.sim.promises import demand
from tests.sim.seeds import Play, play_seeds
from tests.support.fakedisk import FakeDisk
from tests.support.resp import Error, Reply

from millstream.errors import CommandError
from millstream.server.cluster.peers import Peers

SECRET, SHARD = b"0f1e2d3c", b"s1"
LEASE_MS, MARGIN_MS = 3000, 1000
DURABLE_LEASE_MS = 30_000  # with N >= 1: for reads, when the members have been silent for long
STEPS = 2500
READS = (b"XRANGE", b"TREAD", b"GET")
DOWN = "CLUSTERDOWN"


class TermsNode(FleetNode):
    """A member of the shard, with the command PROMISE."""

    def __init__(
        self, fleet: Fleet, index: int, disk: FakeDisk, config: FleetConfig, chance: random.Random
    ) -> None:
        super().__init__(fleet, index, disk, config, chance)
        self.terms = self.replication.join_shard(
            id_of_node(index), lambda: cast(TermsFleet, fleet).node_timeout_ms, self.lease_ms
        )
        self.cluster = SimpleNamespace(peers=self._peers())
        self.known_term = 0  # of the last order
        self.suspended_at_ms: int | None = None
        self._judge_frames()

    def _judge_frames(self) -> None:
        """A server that is not the primary of its term records nothing but the frame with which a
        term begins, and the frames that it receives."""
        commits = self.persistence.commits
        commit = commits.commit

        def judged(payload: bytes | None) -> int:
            is_first = payload == b"" and commits.first_effect is not None
            demand(self.terms.is_leading or is_first, f"{self.index} is no primary: {payload!r}")
            return commit(payload)

        commits.commit = judged  # type: ignore[method-assign]

    def lease_ms(self) -> int:
        return self.loop.time_ms

    def extend_lease(self, left_ms: int) -> None:
        self.terms.extend_lease(self.lease_ms() + left_ms)

    def suspend(self) -> None:
        """The machine, with its steady clock, but without the clock of leases."""
        self.is_frozen, self.suspended_at_ms = True, self.loop.time_ms

    def resume(self) -> None:
        """The machine, or only the process, runs again."""
        self.is_frozen = False
        if self.suspended_at_ms is not None:
            self.steady_start_ms -= self.loop.time_ms - self.suspended_at_ms
            self.suspended_at_ms = None

    def _peers(self) -> Peers:
        return Peers(lambda: SECRET, lambda asked: None, self.terms, bytes, None)


def id_of_node(index: int) -> str:
    return f"{index:040x}"


def promise_words(term: int, index: int) -> tuple[bytes, ...]:
    asked = id_of_node(index).encode()
    return b"CLUSTER", b"PROMISE", SHARD, b"%d" % term, b"n", b"SILENCE", asked


class Asked(NamedTuple):
    """The state when a request was sent: the last frame of the server, and the greatest term that
    had confirmed something."""

    frame: Frame | None
    confirmed_term: int


@dataclass
class Election:
    """`promises`: the (term, number) of the members that have promised."""

    candidate: int
    term: int
    before: int  # the term that the transaction compares
    asked: set[int] = field(default_factory=set)
    promises: dict[int, tuple[int, int]] = field(default_factory=dict)


class KeepAlive(NamedTuple):
    """A request of a primary for its lease, on its way."""

    node: TermsNode
    term: int
    sent_ms: int  # on its clock of leases


class TermsFleet(Fleet):
    module = "tests.sim.terms_fleet"
    node_class = TermsNode
    sizes = ((3, 1), (3, 1), (3, 1), (3, 0), (3, 2), (5, 2), (2, 1), (2, 0))  # members, N

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        super().__init__(seed, steps)
        size, self.durable = self.chance.choice(self.sizes)
        self.node_timeout_ms = self.chance.choice([5000, 300])
        self.lease_length_ms = LEASE_MS
        if self.durable:
            self.fsync = "always"
            self.lease_length_ms = DURABLE_LEASE_MS
        self.primaries = {1: 0}  # by term
        self.lease_term, self.lease_until_ms = 0, 0
        self.election: Election | None = None
        self._tried_term = 1
        self._has_healed = False
        self._answers: list[tuple[KeepAlive, bool]] = []
        self._requests: list[KeepAlive] = []
        self.without_store: set[int] = set()
        self.asked: dict[tuple[int, int], list[Asked]] = {}  # by server and client
        self.confirmed: dict[Frame, tuple[int, str]] = {}  # with the term
        self.confirmed_term = 0
        self.nodes = []
        for index in range(size):
            config = FleetConfig(appendfsync=self.fsync, repl_backlog_size=self.ring_bytes)
            disk = FakeDisk(seed + index)
            self.nodes.append(self.node_class(self, index, disk, config, self._own()))

    @property
    def members(self) -> list[TermsNode]:
        return cast(list[TermsNode], self.nodes)

    @property
    def term(self) -> int:
        """The newest term, as the store has it."""
        return max(self.primaries)

    def _choices(self) -> list[tuple[float, Callable[[], None]]]:
        left_out = [self._change_role, self._fail_over_by_command, self._run_node, self._deliver]
        kept = [
            (weight if weight > 1 else weight / 2, event)
            for weight, event in super()._choices()
            if event not in left_out
        ]
        return [
            *kept,
            (25, self._ask),
            (20, self._give_an_order),
            (70, self._run_if_any),
            (70, self._deliver_if_any),
            (0.5, self._begin_election),
            (8 if self.election else 0, self._ask_for_promise),
            (3 if self.election else 0, self._decide),
            (0.1 if self.election else 0, self._give_up_election),
            (0.2, self._lose_or_find_store),
            (10 if self.durable else 5, self._keep_alive),
        ]

    def _run_if_any(self) -> None:
        if any(node.has_work() for node in self._awake()):
            self._run_node()

    def _deliver_if_any(self) -> None:
        if self._deliverable():
            self._deliver()

    # Faults, most of which end soon: most of the time a shard works

    def _freeze_or_thaw(self) -> None:
        frozen = [node for node in self.members if node.is_frozen]
        again = frozen and self.chance.random() < 0.85
        node = self.chance.choice(frozen if again else self.members)
        if node.is_frozen:
            self.note("thaw", str(node.index))
            node.resume()
        elif self.chance.random() < 0.5:
            self.note("suspend", str(node.index))
            node.suspend()
        else:
            self.note("freeze", str(node.index))
            node.is_frozen = True

    def _partition_or_heal(self) -> None:
        if self.partitions and self.chance.random() < 0.7:
            pair = self.chance.choice(sorted(self.partitions, key=sorted))
        else:
            pair = frozenset(self.chance.sample(range(len(self.nodes)), 2))
        self.note("heal" if pair in self.partitions else "partition", str(sorted(pair)))
        self.partitions ^= {pair}

    # The store

    def _lose_or_find_store(self) -> None:
        index = self.chance.randrange(len(self.nodes))
        if self.without_store and self.chance.random() < 0.7:
            index = self.chance.choice(sorted(self.without_store))
        self.without_store ^= {index}
        self.note("store", f"{index} {'lost' if index in self.without_store else 'found'}")

    def _give_an_order(self) -> None:
        """A member learns who the primary of a term is; perhaps not of the newest one."""
        nodes = [node for node in self.members if self._reaches_store(node)]
        without = [node for node in nodes if node.known_term < self.term]
        if not nodes:
            return
        late = without and self.chance.random() < 0.7
        node = self.chance.choice(without if late else nodes)
        term = self.chance.choice([self.term, self.term, self.term, max(node.known_term, 1)])
        self._guarded(node, partial(self._order, node, term))

    def _order(self, node: TermsNode, term: int) -> None:
        index = self.primaries[term]
        try:
            if index == node.index:
                was_leading = node.terms.is_leading and node.terms.term == term
                node.terms.lead(term, [id_of_node(one.index) for one in self.nodes], self.durable)
                if not was_leading:
                    self.note("lead", f"{index} in term {term}")
                    self._judge_primary(node, term)
            else:
                port = self.nodes[index].port
                node.terms.follow("fleet", port, id_of_node(index), term, self.durable)
        except CommandError as error:
            self.note("refused order", f"{node.index} term {term}: {error.message}")
        else:
            node.known_term = max(node.known_term, term)

    def _keep_alive(self) -> None:
        """One step of a request for a lease: it is sent, or arrives, or its answer does."""
        step = self.chance.randrange(3)
        if step == 0:
            for node in self.members:
                if node.terms.is_leading and self._reaches_store(node):
                    self._requests.append(KeepAlive(node, node.terms.term, node.lease_ms()))
        elif step == 1 and self._requests:
            self._arrive(self._requests.pop(0))
        elif step == 2 and self._answers:
            one, is_granted = self._answers.pop(0)
            if (
                is_granted
                and one.node is self.nodes[one.node.index]
                and self._reaches_store(one.node)
            ):
                self._guarded(one.node, partial(self._extend_lease, one))

    def _extend_lease(self, one: KeepAlive) -> None:
        if one.node.terms.is_leading and one.node.terms.term == one.term:
            one.node.terms.extend_lease(one.sent_ms + self.lease_length_ms - MARGIN_MS)

    def _arrive(self, one: KeepAlive) -> None:
        """The store extends a lease, or grants one to the primary of the newest term."""
        is_granted = one.term == self.term and self.primaries[one.term] == one.node.index
        if is_granted:
            self.lease_term = one.term
            self.lease_until_ms = self.time_ms + self.lease_length_ms
        self._answers.append((one, is_granted))

    def _reaches_store(self, node: FleetNode) -> bool:
        return node.index not in self.without_store and not node.is_frozen

    # Elections

    def _begin_election(self) -> None:
        """The wish of any member: whether the primary is lost plays no role for safety. Often the
        candidate cannot reach the primary, which does not reach the store either."""
        node = self.chance.choice(self.nodes)
        if self.election is not None or not self._reaches_store(node):
            return
        self._tried_term = max(self._tried_term, self.term) + 1
        self.election = Election(node.index, self._tried_term, self.term)
        self.note("election", f"{node.index} for term {self._tried_term}")
        primary = self.primaries[self.term]
        if primary != node.index and self.chance.random() < 0.7 and not self._has_healed:
            self.partitions.add(frozenset((node.index, primary)))
            self.without_store.add(primary)

    def _ask_for_promise(self) -> None:
        election = self.election
        if election is None:
            return
        left = [
            node
            for node in self._awake()
            if node.index not in election.asked
            and frozenset((node.index, election.candidate)) not in self.partitions
        ]
        if left:
            node = self.chance.choice(left)
            election.asked.add(node.index)
            self._guarded(node, partial(self._ask_one, node, election.term))

    def _ask_one(self, node: FleetNode, term: int) -> None:
        client = node.accept()
        node.ask(client, b"CLUSTER", b"PEER", SECRET)
        node.ask(client, *promise_words(term, node.index))

    def _promised(self, client: FleetClient, term: int, reply: Reply) -> None:
        election = self.election
        if isinstance(reply, Error):
            self.note("refused promise", f"{client.node.index}: {reply.text}")
            if election is not None:
                election.asked.discard(client.node.index)
        elif election is not None and election.term == term:
            assert isinstance(reply, list)
            line_term, _, number = reply
            assert isinstance(line_term, int)
            assert isinstance(number, int)
            election.promises[client.node.index] = line_term, number

    def _decide(self) -> None:
        """The transaction, if there are enough promises. With N = 0, the lease has to be over."""
        election = self.election
        wanted = len(self.nodes) - self.durable if self.durable else 1
        if election is None or len(election.promises) < wanted:
            return
        if not self.durable and self.time_ms < self.lease_until_ms:
            return
        self.election = None
        if election.before != self.term or election.candidate in self.without_store:
            self.note("late election")
            return
        most = max(election.promises.values())
        best = self.chance.choice([one for one, last in election.promises.items() if last == most])
        self.primaries[election.term] = best
        self.note("elected", f"{best} for term {election.term}: {election.promises}")

    def _give_up_election(self) -> None:
        self.election = None

    # Clients

    def _ask(self) -> None:
        leading = [node for node in self.members if node.terms.is_leading]
        nodes = leading if leading and self.chance.random() < 0.7 else self._awake()
        node = self.chance.choice(nodes or self.nodes)
        client = self._client_of(node)
        words = self._request()
        seq = node.persistence.commits.last_seq
        name = _line_at(node.keyspace.histories, seq)
        frame = None if name is None else (name, seq)
        key = id(node), client.id
        self.asked.setdefault(key, []).append(Asked(frame, self.confirmed_term))
        self._guarded(node, lambda: node.ask(client, *words))

    def _request(self) -> tuple[bytes, ...]:
        """Mostly writes and reads of one entry."""
        if self.chance.random() < 0.2:
            return super()._request()
        writes, reads = (
            (b"TAPPEND", b"a", b"n", b"1"),
            (b"XRANGE", b"a", b"-", b"+", b"COUNT", b"1"),
        )
        return writes if self.chance.random() < 0.7 else reads

    def answered(self, client: FleetClient, words: tuple[bytes, ...], reply: Reply) -> None:
        if words[0] == b"CLUSTER":
            if words[1] == b"PROMISE":
                self._promised(client, int(words[3]), reply)
            return
        asked = self.asked[id(client.node), client.id].pop(0)
        if isinstance(reply, Error):
            self.note("error", reply.text.split()[0])
            return
        node = cast(TermsNode, client.node)
        if words[0] in APPENDS:
            seq = client.wrote_seq
            frame: Frame | None = str(_line_at(node.keyspace.histories, seq)), seq
            self.note("confirmed")
        elif words[0] in READS:
            frame = asked.frame
            is_in_lease = node.terms.confirming.serves_reads
            kind = "read in the lease" if is_in_lease else "read"
            self.note(kind if node.terms.is_leading else "read of a replica")
        else:
            return
        is_exclusive = words[0] in APPENDS or not self.durable
        if is_exclusive and node.terms.is_leading:
            self._judge_exclusive(node, asked)
        if self.durable and frame is not None:
            self._note_confirmed(node, frame, f"{words[0].decode()} {reply!r}")

    def _judge_exclusive(self, node: TermsNode, asked: Asked) -> None:
        term = node.terms.term
        if term < asked.confirmed_term:
            self.broken.append(
                f"node {node.index} confirms in term {term} what was asked after a confirmation in"
                f" term {asked.confirmed_term}"
            )
        self.confirmed_term = max(self.confirmed_term, term)

    def _note_confirmed(self, node: TermsNode, frame: Frame, text: str) -> None:
        """A client has seen this frame: it is on enough disks, and remains for ever."""
        have = [one.index for one in self.nodes if _has_stored(one, frame)]
        if len(have) < self.durable + 1:
            self.broken.append(f"frame {frame[1]} was shown by {node.index} and is on {have} only")
        self.confirmed.setdefault(frame, (node.terms.term, text))

    def _judge_primary(self, node: TermsNode, term: int) -> None:
        for frame, (confirmed_term, text) in self.confirmed.items():
            lost = f"primary {node.index} of term {term} has not {text}, frame {frame[1]}"
            demand(confirmed_term >= term or has_frame(node, frame), lost)

    # The end

    def _heal(self) -> None:
        self.partitions.clear()
        self.least.clear()
        self.without_store.clear()
        for node in self.members:
            node.resume()
            node.disk.mend()
        self.note("the end")
        self._has_healed = True
        self._order_roles()

    def _order_roles(self) -> None:
        """Orders of the newest term; an election if its primary does not confirm."""
        self._primary = self.nodes[self.primaries[self.term]]
        for node in list(self.members):
            if node.replication.receiver.is_wrong:
                self._restart(node, node.disk.copy())
        primary = self.members[self.primaries[self.term]]
        for node in self.members:
            self._guarded(node, partial(self._order, node, self.term))
        self._primary = self.nodes[primary.index]
        for step in (0, 1, 2):
            self._keep_alive_now(step)
        is_leading = self.members[primary.index].terms.is_leading
        if not is_leading or any(node.terms.promised > self.term for node in self.members):
            self._elect_in_steps()

    def _keep_alive_now(self, step: int) -> None:
        if self.durable:
            return
        for node in self.members:
            if step == 0 and node.terms.is_leading:
                self._requests.append(KeepAlive(node, node.terms.term, node.lease_ms()))
        while step == 1 and self._requests:
            self._arrive(self._requests.pop(0))
        while step == 2 and self._answers:
            one, is_granted = self._answers.pop(0)
            if is_granted and one.node is self.nodes[one.node.index]:
                self._extend_lease(one)

    def _elect_in_steps(self) -> None:
        """One step of an election each second. A promise may have been lost with its server."""
        if self.chance.random() < 0.3:
            self._give_up_election()
        self._begin_election()
        for _ in self.nodes:
            self._ask_for_promise()
        self._decide()

    def _allow_less(self) -> None:
        """Orders of a term allow it."""

    def _judge_all(self) -> None:
        super()._judge_all()
        self._judge_primary(cast(TermsNode, self._primary), self.term + 1)
        self.note(f"with N = {self.durable} of {len(self.nodes)}")


def play(seed: int, steps: int = STEPS) -> dict[str, int]:
    return TermsFleet(seed, steps).run()


if __name__ == "__main__":
    sys.exit(
        play_seeds("tests.sim.terms_fleet", lambda seed, steps: Play(play(seed, steps)), STEPS)
    )

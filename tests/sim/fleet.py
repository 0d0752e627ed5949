"""Plays one seed of a fleet: two to four servers that follow each other, on a network that fails.

Checked all the time: a frame of a line of history has one payload on all servers; a replica makes
no frames of its own; WAIT and WAITAOF count servers that have the frame, on their disks; a full
sync leaves the old data, or everything that the primary had when it was asked. Checked whenever a
server has loaded, and at the end: its data is that of its frames. Once the network is healed and
quiet, all servers are equal.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.sim.data import Data, difference, seen_in, shown
from tests.sim.fleet_node import FleetClient, FleetConfig, FleetNode
from tests.sim.net import Connection
from tests.sim.promises import BrokenPromise, demand
from tests.sim.replay import Replay
from tests.sim.seeds import Play, play_seeds
from tests.sim.world import DurableFrames
from tests.support.fakedisk import Crashed, FakeDisk
from tests.support.resp import Reply

from millstream.errors import CommandError
from millstream.server.replication.link_connection import LinkConnection
from millstream.server.replication.receiver import Trust
from millstream.server.replication.replacement import Replacement
from millstream.server.replication.rewinding import Rewinding, why_impossible
from millstream.storage.keyspace.keyspace import Line

FIRST_MS = 1_700_000_000_000
STEPS = 1500
SETTLE_STEPS = 200_000
SETTLE_S = 200
TRACE_LINES = 80
KEYS = (b"a", b"b", b"c")
DISK_OPERATIONS = (
    "write", "sync", "create", "rename", "remove", "truncate", "sync_directory", "keep", "reserve",
)  # fmt: skip

Frame = tuple[str, int]  # a line's ID and a number


class FleetFailure(AssertionError):
    """A seed that shows a broken promise; prints the command that replays it."""


class Least(NamedTuple):
    """The minimum that a server has since it began a full sync: the last frame that was on its disk
    then, or as many bytes of frames as the primary had."""

    old: Frame
    new_bytes: int


class Fleet:
    module = "tests.sim.fleet"  # plays a seed again
    node_entries = 100  # in a block
    rings = 200, 2000, 1 << 20  # a small one leads to full syncs
    node_class = FleetNode

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        self.seed = seed
        self.steps = steps
        self.chance = random.Random(seed)
        self.time_ms = 0
        self.wall_ms = FIRST_MS
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self.counts: dict[str, int] = {}
        self.payloads: dict[Frame, bytes] = {}
        self.holders: dict[Frame, set[int]] = {}  # the servers that have recorded it
        self.connections: list[Connection] = []
        self.partitions: set[frozenset[int]] = set()
        self.broken: list[str] = []
        self.least: dict[int, Least] = {}
        self._seen_changes: set[Replacement | Rewinding] = set()
        self._value = 0
        self.fsync = self.chance.choice(["always", "always", "everysec", "no"])
        self.crashes = self.chance.random() < 0.7
        self.flips = self.chance.random() < 0.3
        self.rewrites = self.chance.choice([0.5, 0.05])
        self.ring_bytes = self.chance.choice(self.rings)
        self.disk_faults = self.chance.random() < 0.3
        self.clock_jumps = self.chance.random() < 0.3
        self.nodes: list[FleetNode] = []
        for index in range(self.chance.choice([2, 2, 3, 3, 4])):
            primary = "" if index == 0 else "fleet 7000"
            config = FleetConfig(
                appendfsync=self.fsync, replicaof=primary, repl_backlog_size=self.ring_bytes
            )
            disk = FakeDisk(seed + index)
            self.nodes.append(self.node_class(self, index, disk, config, self._own()))

    def _own(self) -> random.Random:
        return random.Random(self.chance.getrandbits(64))

    # The play

    def run(self) -> dict[str, int]:
        """Play; FleetFailure when a promise is broken."""
        try:
            for node in self.nodes:
                node.start()
            for _ in range(self.steps):
                self._step()
                self._judge_changes()
                for node in self.nodes:
                    self._judge_least(node)
                demand(not self.broken, "; ".join(self.broken))
            self._heal()
            self._settle()
            self._judge_all()
        except Exception as problem:
            raise FleetFailure(self._story(problem)) from problem
        return self.counts

    def _story(self, problem: Exception) -> str:
        lines = "\n  ".join(self.trace)
        return (
            f"{type(problem).__name__}: {problem}\n{len(self.nodes)} nodes, fsync {self.fsync}\n"
            f"last events:\n  {lines}\n"
            f"play it again: python -m {self.module} {self.seed} --steps {self.steps}"
        )

    def note(self, kind: str, text: str = "") -> None:
        self.trace.append(f"{self.time_ms:>7} {kind} {text}")
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def _step(self) -> None:
        choices = self._choices()
        events = [event for _, event in choices]
        event = self.chance.choices(events, [weight for weight, _ in choices])[0]
        event()

    def _choices(self) -> list[tuple[float, Callable[[], None]]]:
        choices: list[tuple[float, Callable[[], None]]] = [
            (20, self._ask),
            (6, self._pass_time),
            (0.4, self._cut),
            (0.3, self._partition_or_heal),
            (self.rewrites, self._rewrite),
            (0.4, self._change_role),
            (0.2, self._freeze_or_thaw),
            (0.4, self._fail_over_by_command),
        ]
        if any(node.has_work() for node in self._awake()):
            choices.append((40, self._run_node))
        if any(self._deliverable()):
            choices.append((40, self._deliver))
        if self.crashes:
            choices.append((0.3, self._crash))
        if self.flips:
            choices.append((0.2, self._flip))
        if self.disk_faults:
            choices.append((0.3, self._fail_or_mend_a_disk))
        if self.clock_jumps:
            choices.append((0.2, self._jump))
        return choices

    def _awake(self) -> list[FleetNode]:
        return [node for node in self.nodes if not node.is_frozen]

    # Events

    def _run_node(self) -> None:
        node = self.chance.choice([node for node in self._awake() if node.has_work()])
        self._guarded(node, node.step)

    def _guarded(self, node: FleetNode, action: Callable[[], None]) -> None:
        try:
            action()
        except Crashed:
            self._restart(node, node.disk.after_crash(self.chance.getrandbits(32)))

    def _pass_time(self) -> None:
        self._advance(self.chance.choice([1, 1, 5, 30, 200, 1000]))

    def rest(self, ms: int = 10) -> None:
        """Let this time pass, then run and deliver what can be, until there is nothing left."""
        self._advance(ms)
        while any(node.has_work() for node in self._awake()) or self._deliverable():
            self.turn()

    def turn(self) -> None:
        """Run what the servers have to do, then deliver some bytes."""
        for node in self._awake():
            while node.has_work():
                node.step()
        if self._deliverable():
            self._deliver()

    def _advance(self, ms: int) -> None:
        self.time_ms += ms
        for node in self.nodes:
            node.loop.time_ms = max(node.loop.time_ms, self.time_ms)

    def _deliverable(self) -> list[tuple[Connection, str]]:
        found = []
        for one in self.connections:
            if frozenset((one.replica.index, one.primary.index)) in self.partitions:
                continue
            for name, end in (("up", one.primary), ("down", one.replica)):
                pipe = one.up if name == "up" else one.down
                if pipe.data and pipe.is_read and not one.is_cut and not end.is_frozen:
                    found.append((one, name))
            for name, end in (("replica", one.replica), ("primary", one.primary)):
                if one.is_cut and name in one.ends and not end.is_frozen:
                    found.append((one, name))
            if one.closes and not one.down.data and not one.up.data and not one.is_cut:
                found.append((one, "close"))
        return found

    def _deliver(self) -> None:
        one, what = self.chance.choice(self._deliverable())
        if what == "close":
            one.cut()
            return
        if what in one.ends and one.is_cut:
            node = one.replica if what == "replica" else one.primary
            self._guarded(node, lambda: one.notify(what))
        else:
            pipe, node = (one.up, one.primary) if what == "up" else (one.down, one.replica)
            size = len(pipe.data)
            if self.chance.random() < 0.4:
                size = self.chance.randint(1, size)
            self._guarded(node, lambda: pipe.deliver(size))
        self.connections = [one for one in self.connections if one.ends or not one.is_cut]

    def _cut(self) -> None:
        if self.connections:
            one = self.chance.choice(self.connections)
            self.note("cut", f"{one.replica.index} -> {one.primary.index}")
            one.cut()

    def _fail_or_mend_a_disk(self) -> None:
        disk = self.chance.choice(self.nodes).disk
        if disk.failures or disk.capacity is not None:
            disk.mend()
            self.note("mended disk")
        elif self.chance.random() < 0.3:
            disk.capacity = disk.used_bytes() + self.chance.choice([0, 500, 5000])
            self.note("full disk")
        else:
            operation = self.chance.choice(DISK_OPERATIONS)
            disk.fail(operation, times=self.chance.choice([1, 1, 3, None]))
            self.note("failing disk", operation)

    def _jump(self) -> None:
        """A wall clock is set."""
        node = self.chance.choice(self.nodes)
        node.wall_ms += self.chance.choice([-3_600_000, -1500, -20, 20, 1500, 3_600_000])
        self.note("clock jump", str(node.index))

    def _flip(self) -> None:
        some = [one for one in self.connections if one.down.data and not one.is_cut]
        if some:
            one = self.chance.choice(some)
            if one.replica.replication.link is None:
                return
            self.note("flip", f"{one.primary.index} -> {one.replica.index}")
            place = self.chance.randrange(len(one.down.data))
            if one.down.sent_bytes > 4096:  # not in the answers before the first record
                one.down.data[place] ^= 1 << self.chance.randrange(8)

    def _partition_or_heal(self) -> None:
        if len(self.nodes) < 2:
            return
        pair = frozenset(self.chance.sample(range(len(self.nodes)), 2))
        self.note("partition" if pair not in self.partitions else "heal", str(sorted(pair)))
        self.partitions ^= {pair}

    def _freeze_or_thaw(self) -> None:
        node = self.chance.choice(self.nodes)
        node.is_frozen = not node.is_frozen
        self.note("freeze" if node.is_frozen else "thaw", str(node.index))

    def _rewrite(self) -> None:
        node = self.chance.choice(self._awake() or self.nodes)
        self.note("rewrite", str(node.index))
        try:
            node.persistence.snapshots.rewrite()
        except CommandError:
            self.note("refused rewrite")

    def _change_role(self) -> None:
        node = self.chance.choice(self.nodes)
        client = node.accept()
        if self.chance.random() < 0.35:
            self.note("promote", str(node.index))
            self._guarded(node, lambda: node.ask(client, b"REPLICAOF", b"NO", b"ONE"))
            return
        other = self.chance.choice([other for other in self.nodes if other is not node])
        self.note("follow", f"{node.index} -> {other.index}")
        port = b"%d" % other.port
        self._guarded(node, lambda: node.ask(client, b"REPLICAOF", b"fleet", port))

    def _fail_over_by_command(self) -> None:
        """FAILOVER, of the kinds that it has."""
        node = self.chance.choice(self.nodes)
        target = self.chance.choice([*node.replication.feeds, None])
        words = [b"TIMEOUT", b"%d" % self.chance.choice([50, 500])]
        if target is not None:
            words += [b"TO", target.host.encode(), b"%d" % target.port]
            words += [b"FORCE"] if self.chance.random() < 0.3 else []
        if self.chance.random() < 0.2:
            words = [b"ABORT"]
        before = node.replication.failover.state
        self._guarded(node, lambda: node.ask(node.accept(), b"FAILOVER", *words))
        if node.replication.failover.state != before:
            self.note("failover by command", f"{node.index} {words}")

    def _crash(self) -> None:
        node = self.chance.choice(self.nodes)
        if self.chance.random() < 0.5:
            self.note("power cut", str(node.index))
            disk = node.disk.after_crash(self.chance.getrandbits(32))
        else:
            self.note("kill", str(node.index))
            disk = node.disk.copy()
        self._restart(node, disk)

    def _restart(self, node: FleetNode, disk: FakeDisk) -> None:
        """A new run of a server on the rest of its disk."""
        node.is_alive = False
        for one in self.connections:
            if node in (one.replica, one.primary):
                one.cut()
                one.ends.discard("replica" if node is one.replica else "primary")
        self.connections = [one for one in self.connections if one.ends or not one.is_cut]
        again = self.node_class(self, node.index, disk, node.config, self._own())
        self.nodes[node.index] = again
        again.start()
        self.has_loaded(again)
        self.note("start", f"{node.index} at frame {again.persistence.commits.last_seq}")
        self._judge(again)
        self._judge_least(again)

    def connect(self, node: FleetNode, port: int, protocol: LinkConnection) -> None:
        """A server connects to another one."""
        primary = self.nodes[port - 7000]
        pair = frozenset((node.index, primary.index))
        if pair in self.partitions or primary is node:
            node.loop.call_later(1, protocol.connection_lost, OSError("unreachable"))
            return
        one = Connection(node, primary, protocol)
        self.connections.append(one)
        node.loop.call_soon(one.begin)

    # Clients

    def _ask(self) -> None:
        node = self.chance.choice(self._awake() or self.nodes)
        client = self._client_of(node)
        words = self._request()
        self._guarded(node, lambda: node.ask(client, *words))

    def _client_of(self, node: FleetNode) -> FleetClient:
        """Mostly one that waits for no reply, otherwise a new one."""
        free = [
            client
            for client in node.clients.values()
            if client.connection is None and not client.asked
        ]
        return self.chance.choice(free) if free and self.chance.random() < 0.9 else node.accept()

    def _request(self) -> tuple[bytes, ...]:
        chance = self.chance
        key = chance.choice(KEYS)
        self._value += 1
        value = b"%d" % self._value
        return chance.choice(
            [
                (b"TAPPEND", key, b"n", value),
                (b"XADD", key, b"*", b"n", value),
                (b"XADD", key, b"MAXLEN", b"20", b"*", b"n", value, b"m", b"x" * 50),
                (b"XGROUP", b"CREATE", key, b"g", b"0", b"MKSTREAM"),
                (b"XREADGROUP", b"GROUP", b"g", b"c", b"COUNT", b"3", b"STREAMS", key, b">"),
                (b"XREAD", b"COUNT", b"3", b"BLOCK", b"500", b"STREAMS", key, b"$"),
                (b"TREAD", key, b"0.0", b"5"),
                (b"XRANGE", key, b"-", b"+", b"COUNT", b"5"),
                (b"SET", b"s" + key, value),
                (b"SET", b"e" + key, value, b"PX", b"400"),
                (b"GET", b"e" + key),
                (b"DEL", chance.choice([key, b"s" + key])),
                (b"WAIT", b"%d" % chance.randint(0, len(self.nodes) - 1), b"200"),
                (b"WAITAOF", b"1", b"%d" % chance.randint(0, len(self.nodes) - 1), b"200"),
            ]
        )

    def replied(self, client: FleetClient) -> None:
        """A client has received bytes: look at the replies that are complete."""
        while client.asked:
            try:
                reply = client.next_reply()
            except EOFError:
                return
            words = client.asked.pop(0)
            self.answered(client, words, reply)
            if words[0] == b"WAIT" and isinstance(reply, int):
                self._judge_wait(client, reply)
            elif words[0] == b"WAITAOF" and isinstance(reply, list):
                self._judge_waitaof(client, reply)

    def answered(self, client: FleetClient, words: tuple[bytes, ...], reply: Reply) -> None:
        """A client has its reply."""

    def _judge_wait(self, client: FleetClient, count: int) -> None:
        """No more servers are counted than have applied the frame."""
        have = self._that_had(client)
        self.note("wait", f"{count} of {len(have)}")
        if client.wrote_seq and count > len(have):
            self.broken.append(f"WAIT counts {count} servers, {sorted(have)} had the frame")

    def _that_had(self, client: FleetClient) -> set[int]:
        """The other servers that have had the client's last frame at some time."""
        name = _line_at(client.node.keyspace.histories, client.wrote_seq)
        return self.holders.get((str(name), client.wrote_seq), set()) - {client.node.index}

    def _judge_waitaof(self, client: FleetClient, reply: list[object]) -> None:
        self.note("waitaof", str(reply))
        count = reply[1]
        assert isinstance(count, int)
        if client.wrote_seq and count > len(self._that_had(client)):
            self.broken.append(f"WAITAOF counts {count} servers")
        if reply[0] and self.fsync == "always" and client.wrote_seq:
            seq = DurableFrames(client.node.disk).look()
            if seq < client.wrote_seq:
                self.broken.append(f"WAITAOF says {client.wrote_seq} is on the disk, {seq} is")

    # Frames

    def frame(self, node: FleetNode, seq: int, payload: bytes | None) -> None:
        """A server has recorded a frame: it is the same wherever it is recorded."""
        if payload is None:
            self.broken.append(f"node {node.index}: frame {seq} could not be recorded")
            return
        role = node.replication
        if role.is_replica and not role.receiver.is_applying:
            self.broken.append(f"replica {node.index} has made frame {seq}: {payload!r}")
        lines = node.keyspace.histories
        name = _line_at(lines, seq)
        if name is None:
            self.broken.append(f"node {node.index}: frame {seq} is in no line of {lines}")
            return
        self.holders.setdefault((name, seq), set()).add(node.index)
        known = self.payloads.setdefault((name, seq), payload)
        if known != payload:
            self.broken.append(f"frame {seq} of {name[:6]} is {known!r} and {payload!r}")

    def has_loaded(self, node: FleetNode) -> None:
        """A server has all frames up to its last one from a base."""
        for seq in range(1, node.persistence.commits.last_seq + 1):
            name = _line_at(node.keyspace.histories, seq)
            self.holders.setdefault((str(name), seq), set()).add(node.index)

    def data_of(self, node: FleetNode) -> Data:
        """The data of a server's frames."""
        data = Data()
        replay = Replay(data)
        for seq in range(1, node.persistence.commits.last_seq + 1):
            name = _line_at(node.keyspace.histories, seq)
            demand(name, f"node {node.index}: frame {seq} is in no line of history")
            replay.apply(self.payloads[str(name), seq])
        return data

    def _judge(self, node: FleetNode) -> None:
        if node.replication.receiver.change is not None:
            return
        found = difference(seen_in(node.keyspace), shown(self.data_of(node)))
        demand(found is None, f"node {node.index}: its data is not that of its frames: {found}")

    def _judge_changes(self) -> None:
        """A full sync begins only where a partial sync, or a rewind before it, is impossible."""
        for node in self.nodes:
            if node.replication.totals.link_errors and not self.flips:
                self.broken.append(f"node {node.index}: {node.replication.totals.last_error}")
            link = node.replication.link
            change = node.replication.receiver.change
            if link is None or change is None or change in self._seen_changes:
                continue
            self._seen_changes.add(change)
            self.least.pop(node.index, None)
            if isinstance(change, Rewinding):
                self.note("rewind", str(node.index))
                continue
            self.note("full sync", str(node.index))
            self._note_least(node, change)
            if self._had_other_way(node, link.port, change):
                self.broken.append(f"node {node.index}: a full sync where less was enough")

    def _note_least(self, node: FleetNode, change: Replacement) -> None:
        """A full sync begins: note what the server has."""
        seq = node.persistence.commits.on_disk_seq
        name = _line_at(node.keyspace.histories, seq)
        if name is not None:
            self.least[node.index] = Least((name, seq), change.full.frame_bytes)

    def _judge_least(self, node: FleetNode) -> None:
        """The server has the old data, or all of the new data, or it is loading it."""
        role, least = node.replication, self.least.get(node.index)
        if least is None or node.executor.loading or role.receiver.is_changing:
            return
        if role.is_replica and role.receiver.is_wrong:
            return
        has_new = node.persistence.commits.frame_bytes >= least.new_bytes
        demand(
            has_new or has_frame(node, least.old),
            f"node {node.index} has neither the data before its full sync nor that of its primary:"
            f" frame {node.persistence.commits.last_seq},"
            f" {node.persistence.commits.frame_bytes} bytes; {least}",
        )

    def _had_other_way(self, node: FleetNode, port: int, change: Replacement) -> bool:
        """True if a partial sync or a rewind was possible."""
        receiver = node.replication.receiver
        if self.disk_faults or receiver.is_wrong or change.is_published:
            return False
        if receiver.trust is Trust.UNKNOWN:  # it did not report its histories
            seq = receiver.rewind_seq
            return seq >= 0 and not why_impossible(node.persistence, seq)
        common = change.full.common_seq
        primary = self.nodes[port - 7000]
        has_all = common >= primary.replication.resync.oldest_needed()
        return common >= 0 and has_all and not why_impossible(node.persistence, common)

    # The end

    def _heal(self) -> None:
        """The network and all servers work again, and follow one of them."""
        self.partitions.clear()
        self.least.clear()
        for node in self.nodes:
            node.is_frozen = False
            node.disk.mend()
            if node.replication.failover.is_under_way:
                node.ask(node.accept(), b"FAILOVER", b"ABORT")
        primary = self._choose_last_primary()
        self.note("the end", f"all follow {primary.index}")
        self._primary = primary
        self._order_roles()

    def _order_roles(self) -> None:
        """All follow the chosen primary. A server that loads data refuses, and is asked again. One
        whose data may be wrong refuses until it is restarted."""
        port = self._primary.port
        for node in list(self.nodes):
            now = node.replication.link
            if node is self._primary and now is not None and node.replication.receiver.is_wrong:
                self._restart(node, node.disk.copy())
                self._primary = self.nodes[node.index]
            elif node is self._primary and now is not None:
                node.ask(node.accept(), b"REPLICAOF", b"NO", b"ONE")
            elif node is not self._primary and (now is None or now.port != port):
                node.ask(node.accept(), b"REPLICAOF", b"fleet", b"%d" % port)

    def _choose_last_primary(self) -> FleetNode:
        return self.chance.choice(self.nodes)

    def _settle(self) -> None:
        for second in range(SETTLE_S):
            for _ in range(SETTLE_STEPS):
                busy = [node for node in self.nodes if node.has_work()]
                ways = self._deliverable()
                if not busy and not ways:
                    break
                if ways and (not busy or self.chance.random() < 0.5):
                    self._deliver()
                else:
                    node = self.chance.choice(busy)
                    self._guarded(node, node.step)
            else:
                raise BrokenPromise("the fleet does not come to rest")
            self._judge_changes()
            demand(not self.broken, "; ".join(self.broken))
            if self._is_equal():
                return
            self._advance(1000)
            self._order_roles()
            if second == SETTLE_S // 2:
                self._allow_less()
        raise BrokenPromise(f"the servers do not become equal: {self._positions()}")

    def _allow_less(self) -> None:
        """Servers that refuse to replace more data by less are ordered to do it."""
        for node in self.nodes:
            link = node.replication.link
            if link is not None and not link.is_connected:
                self.note("allow less", str(node.index))
                node.ask(node.accept(), b"REPLICAOF", b"fleet", b"%d" % link.port)

    def _is_equal(self) -> bool:
        last_seq = self._primary.persistence.commits.last_seq
        return all(
            node is self._primary
            or (
                node.replication.link is not None
                and node.replication.link.is_connected
                and node.persistence.commits.last_seq == last_seq
            )
            for node in self.nodes
        )

    def _positions(self) -> list[str]:
        return [
            f"{node.index}: {node.persistence.commits.last_seq}"
            f" {node.replication.link and node.replication.link.state}"
            for node in self.nodes
        ]

    def seen(self, node: FleetNode) -> dict[str, Any]:
        """The data in which all servers are equal in the end."""
        return seen_in(node.keyspace)

    def _judge_all(self) -> None:
        expected = self.seen(self._primary)
        for node in self.nodes:
            self._judge(node)
            found = difference(self.seen(node), expected)
            demand(found is None, f"node {node.index} differs from the primary: {found}")
            frame_bytes = self._primary.persistence.commits.frame_bytes
            demand(
                node.persistence.commits.frame_bytes == frame_bytes,
                "the sizes of all frames differ",
            )


def _line_at(lines: tuple[Line, ...], seq: int) -> str | None:
    names = [name for name, first in lines if first <= seq]
    return names[-1] if names else None


def has_frame(node: FleetNode, frame: Frame) -> bool:
    """True if a server has this frame, on its disk or not."""
    name, seq = frame
    return (
        seq <= node.persistence.commits.last_seq and _line_at(node.keyspace.histories, seq) == name
    )


def play(seed: int, steps: int = STEPS) -> dict[str, int]:
    return Fleet(seed, steps).run()


if __name__ == "__main__":
    sys.exit(play_seeds("tests.sim.fleet", lambda seed, steps: Play(play(seed, steps)), STEPS))

"""Plays seeds of a fleet with `replicas-durable 1` whose clients use the rules of groups: limits,
dead letters, filters, orders, pauses, scheduled entries, and policies that depend on groups.

The promises of the rules are checked on the history of effects (`group_replay`), of which every
server that was loaded, that was promoted, or that has taken a full sync must have the data. Each
delivery that a client has seen must be in this history. In the end, no entry may be left that
should have been copied, appended or removed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.sim.data import Data, EntryId, Group, Stream
from tests.sim.durable_fleet import DurableFleet, has_frame
from tests.sim.fleet import Frame, _line_at
from tests.sim.fleet_node import FleetClient, FleetNode
from tests.sim.players import read_by_consumer
from tests.sim.promises import demand
from tests.sim.replay import Replay, effects_of
from tests.sim.seeds import Play, play_seeds
from tests.support.resp import Error, Reply

from millstream.server.replication.replacement import Replacement
from millstream.storage.groups.dead_entries import dead_count

STEPS = 900
KEYS = (b"jobs", b"jobs", b"orders", b"orders", b"done", b"hard")
GROUPS = (b"w", b"w", b"v")
CONSUMERS = (b"a", b"b", b"c")
DEAD = b"dead"
DELIVERIES = (b"1", b"2", b"3")
REST_MS = 8000

Request = tuple[bytes, ...]
Held = tuple[bytes, bytes, EntryId]  # key, group, entry


class RulesFleet(DurableFleet):
    module = "tests.sim.rules_fleet"
    node_entries = 1
    rings = 200, 200, 2000

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        super().__init__(seed, steps)
        self._known: list[tuple[bytes, bytes, bytes, bytes]] = []  # and the reader
        self._shown: list[tuple[Frame, Held]] = []

    def _choices(self) -> list[tuple[float, Callable[[], None]]]:
        return [*super()._choices(), (40, self._ask)]

    # Clients

    def _ask(self) -> None:
        primaries = self._primaries()
        if len(primaries) != 1 or self.chance.random() < 0.05:
            super()._ask()
            return
        [node] = primaries
        if not any(feed.is_online for feed in node.replication.feeds):
            self._connect_again()  # it would refuse the request
            return
        client = self._client_of(node)
        words = self._request()
        self._guarded(node, lambda: node.ask(client, *words))

    def _connect_again(self) -> None:
        for _ in range(10):
            if self._deliverable():
                self._deliver()
            elif any(node.has_work() for node in self._awake()):
                self._run_node()

    def _request(self) -> Request:
        chances: list[tuple[int, Callable[[bytes, bytes], Request]]] = [
            (28, self._append), (6, self._rules), (28, self._read), (14, self._ack),
            (11, self._nack), (3, self._keep), (4, self._claim), (1, self._leave),
            (3, self._redrive), (7, self._schedule), (2, self._policy), (2, self._change_target),
            (1, self._delete),
        ]  # fmt: skip
        make = self.chance.choices([one for _, one in chances], [weight for weight, _ in chances])
        if make[0] in (self._ack, self._nack, self._keep, self._claim) and self._known:
            return make[0](*self.chance.choice(self._known)[:2])
        return make[0](self.chance.choice(KEYS), self.chance.choice(GROUPS))

    def _fields(self) -> Request:
        self._value += 1
        key, kind = self.chance.choice([b"1", b"2", b"3"]), self.chance.choice([b"a", b"ab", b"b"])
        ordered = (b"k", key) if self.chance.random() < 0.9 else ()
        return (*ordered, b"t", kind, b"n", b"%d" % self._value)

    def _append(self, key: bytes, group: bytes) -> Request:
        if self.chance.random() < 0.5:
            return b"TAPPEND", key, *self._fields()
        return b"XADD", key, b"*", *self._fields()

    def _rules(self, key: bytes, group: bytes) -> Request:
        chance = self.chance
        words = [b"TGROUP", key, group, b"START", b"0"]
        where = chance.choice(
            [(b"0",), (b"1", b"t", b"EQ", b"a"), (b"1", b"t", b"PREFIX", b"a"),
             (b"2", b"t", b"IN", b"2", b"a", b"b", b"n", b"BETWEEN", b"10", b"+inf")]
        )  # fmt: skip
        if b"+inf" in where:
            where = (*where[:-1], b"1000000")
        if chance.random() < 0.4:
            words += [b"WHERE", *where]
        if chance.random() < 0.1:
            words += [b"PAUSE", chance.choice([b"0", b"300", b"0"])]
        if key == b"hard" and group == b"v":
            return tuple(words)  # a plain group
        words += [b"TIMEOUT", chance.choice([b"40", b"1500", b"6000"])]
        if chance.random() < 0.5:
            words += [b"MAXDELIVER", chance.choice(DELIVERIES), b"DEADLETTER", DEAD]
            words += chance.choice([[b"BACKOFF", b"0"], [b"BACKOFF", b"2", b"5", b"200"]])
        if chance.random() < 0.3:
            words += [b"MAXINFLIGHT", chance.choice([b"0", b"2", b"5"])]
        if key == b"orders" and chance.random() < 0.6:
            words += [b"ORDER", *chance.choice([(b"FIELD", b"k"), (b"FIELD", b"k"), (b"ALL",)])]
            words += [b"RUN", chance.choice([b"1", b"2", b"3"])]
        if chance.random() < 0.1:
            words += [b"CONSUMERTTL", b"700"]
        return tuple(words)

    def _read(self, key: bytes, group: bytes) -> Request:
        count = self.chance.choice([b"1", b"2", b"5"])
        if self.chance.random() < 0.25:
            words = [b"TREAD", key, b"0", count, b"GROUP", group, b"0"]
            if self.chance.random() < 0.2:
                words += [b"RETRY", b"60", self.chance.choice([b"0", b"200"])]
            return tuple(words)
        words = [b"XREADGROUP", b"GROUP", group, self.chance.choice(CONSUMERS), b"COUNT", count]
        if self.chance.random() < 0.3:
            words += [b"BLOCK", b"400"]
        if self.chance.random() < 0.1:
            words += [b"CLAIM", b"100"]
        return (*words, b"STREAMS", key, b">")

    def _some(self, key: bytes, group: bytes) -> list[bytes]:
        """IDs that the group has delivered, if there are any."""
        known = [one[2] for one in self._known if one[:2] == (key, group)]
        return self.chance.sample(known, min(len(known), self.chance.choice([1, 1, 3]))) or [b"1-1"]

    def _ack(self, key: bytes, group: bytes) -> Request:
        ids = self._some(key, group)
        self._known = [one for one in self._known if one[2] not in ids]
        return b"XACK", key, group, *ids

    def _block(self, key: bytes, group: bytes) -> Request:
        ids = self._some(key, group)
        return b"IDS", b"%d" % len(ids), *ids

    def _owner(self, which: Request) -> bytes:
        """The reader that got the last of these entries, or another one."""
        owners = [owner for _, _, text, owner in self._known if text == which[-1]]
        return owners[-1] if owners else self.chance.choice([*CONSUMERS, b""])

    def _nack(self, key: bytes, group: bytes) -> Request:
        chance = self.chance
        mode = chance.choice([(b"FAIL",), (b"FAIL",), (b"SILENT",), (b"FATAL",)])
        delay = (
            (b"DELAY", chance.choice([b"50", b"9000", b"60000"]))
            if mode != (b"FATAL",) and chance.random() < 0.4
            else ()
        )
        which = self._block(key, group) if chance.random() < 0.9 else (b"ALL",)
        return b"TNACK", key, group, self._owner(which), *mode, *delay, b"REASON", b"no", *which

    def _keep(self, key: bytes, group: bytes) -> Request:
        which = self._block(key, group)
        return b"TEXTEND", key, group, self._owner(which), b"500", *which

    def _claim(self, key: bytes, group: bytes) -> Request:
        who, idle = (key, group, self.chance.choice(CONSUMERS)), self.chance.choice([b"0", b"100"])
        just = self.chance.choice([(), (b"JUSTID",)])
        if self.chance.random() < 0.5:
            return b"XAUTOCLAIM", *who, idle, b"0", b"COUNT", b"3", *just
        return b"XCLAIM", *who, idle, *self._some(key, group), *just

    def _leave(self, key: bytes, group: bytes) -> Request:
        return b"XGROUP", b"DELCONSUMER", key, group, self.chance.choice(CONSUMERS)

    def _redrive(self, key: bytes, group: bytes) -> Request:
        return b"TREDRIVE", DEAD, key, group, b"5", *self.chance.choice([(), (b"APPEND",)])

    def _schedule(self, key: bytes, group: bytes) -> Request:
        name = self.chance.choice([b"", b"", b"x"])
        if self.chance.random() < 0.1:
            return b"TCANCEL", key, b"NAME", b"x"
        delay = self.chance.choice([b"0", b"30", b"400", b"2000"])
        return b"TSCHEDULE", key, b"IN", delay, name, *self._fields()

    def _policy(self, key: bytes, group: bytes) -> Request:
        if key == b"hard":
            evict = self.chance.choice([b"ACKED", b"DONE"])
            return b"TPOLICY", key, b"MAXLEN", b"5", b"EVICT", evict, b"HARDLEN", b"20", b"EXACT"
        return b"TPOLICY", b"done", b"EVICT", b"DONE", self.chance.choice([b"EXACT", b"APPROX"])

    def _change_target(self, key: bytes, group: bytes) -> Request:
        """The dead letter stream takes no copies, or takes them again."""
        return self.chance.choice([(b"SET", DEAD, b"x"), (b"SET", DEAD, b"x"), (b"DEL", DEAD)])

    def _delete(self, key: bytes, group: bytes) -> Request:
        return b"XDEL", self.chance.choice([b"jobs", b"orders"]), self._some(key, group)[0]

    def answered(self, client: FleetClient, words: Request, reply: Reply) -> None:
        super().answered(client, words, reply)
        if isinstance(reply, Error) or not isinstance(reply, list):
            return
        key, group = words[1], words[2]
        if words[0] == b"XREADGROUP":
            key = words[words.index(b"STREAMS") + 1]
            texts = [text for _, text in read_by_consumer(reply)]
        elif words[0] in (b"XCLAIM", b"XAUTOCLAIM") and b"JUSTID" not in words:
            rows = reply if words[0] == b"XCLAIM" else reply[1]
            texts = [row[0] for row in rows]  # type: ignore[union-attr, index, misc]
        elif words[0] == b"TREAD":
            group = words[5]
            texts = [row[0].replace(b".", b"-") for row in reply if isinstance(row, list)]
        else:
            return
        seq = client.wrote_seq
        frame = str(_line_at(client.node.keyspace.histories, seq)), seq
        for text in texts:
            ms, _, number = text.partition(b"-")
            if words[0] != b"TREAD":  # which settles what it gets in a group without a timeout
                self._shown.append((frame, (key, group, (int(ms), int(number)))))
            owner = words[3] if words[0] != b"TREAD" else b""
            self._known = [*self._known[-30:], (key, group, text, owner)]

    # Changes of the roles

    def _note_least(self, node: FleetNode, change: Replacement) -> None:
        super()._note_least(node, change)
        link = node.replication.link
        if link is not None:
            self._note_states("full sync", self.nodes[link.port - 7000])

    def _judge_confirmed(self, node: FleetNode) -> None:
        super()._judge_confirmed(node)
        self._note_states("promotion", node)

    def _note_states(self, kind: str, node: FleetNode) -> None:
        for key in dict.fromkeys(KEYS):
            stream = node.keyspace.databases[0].stream(key)
            if stream is None:
                continue
            if stream.schedule:
                self.note(f"{kind} with scheduled entries")
            for group in stream.groups.values():
                dead = dead_count(group.pending)
                states = {
                    "dead": dead,
                    "parked": group.parked,
                    "waiting": group.pending.waiting_count - dead,
                    "in flight": group.in_flight,
                }
                for state, count in states.items():
                    if count:
                        self.note(f"{kind} with {state} entries")

    # The end

    def _settle(self) -> None:
        super()._settle()
        self._primary.ask(self._primary.accept(), b"DEL", DEAD)  # it takes copies
        for _ in range(REST_MS // 500):
            self.rest(500)
        super()._settle()

    def _judge_all(self) -> None:
        super()._judge_all()
        node = self._primary
        replay = self._replayed(node)
        shown: dict[Held, int] = {}
        for frame, held in self._shown:
            if has_frame(node, frame):
                shown[held] = shown.get(held, 0) + 1
        for held, count in shown.items():
            given = replay.given.get((0, *held), 0)
            demand(count <= given, f"{held} was seen {count} times and delivered {given} times")
        for key in dict.fromkeys(KEYS):
            stream = replay.data.databases[0].get(key)
            if isinstance(stream, Stream):
                self._judge_stream(key, stream, node)

    def _replayed(self, node: FleetNode) -> Replay:
        """The history of a server."""
        replay = Replay(Data())
        for seq in range(1, node.persistence.commits.last_seq + 1):
            replay.apply(self.payloads[str(_line_at(node.keyspace.histories, seq)), seq])
        return replay

    def _judge_stream(self, key: bytes, stream: Stream, node: FleetNode) -> None:
        """Nothing is overdue."""
        late = [ticket for ticket in stream.scheduled if ticket[0] + 1000 < node.now_ms()]
        demand(not late, f"{key!r} has scheduled entries that are due: {late}")
        first = next(iter(stream.entries), None)
        if first is not None and stream.groups and stream.policy and stream.policy[4:5] == (2,):
            held = any(group.holds(first) for group in stream.groups.values())
            demand(held, f"{key!r} keeps {first}, which all groups have settled")
        for name, group in stream.groups.items():
            self._judge_group(name, group, stream, node.steady_ms())

    @staticmethod
    def _judge_group(name: bytes, group: Group, stream: Stream, now_ms: int) -> None:
        limit = group.rules.get("max_deliver", 0)
        for entry_id, record in group.pending.items():
            if entry_id not in stream.entries:
                continue
            has_ended = record.dead is not None and "dead_letter" in group.rules
            is_late = record.is_due(now_ms - 1000, True, group.timeout_ms)
            has_failed = 0 < limit <= record.deliveries and is_late
            waits = any(other < entry_id for other in group.of_its_key(entry_id))
            demand(waits or not (has_ended or has_failed), f"{entry_id} of {name!r}: {record}")

    def effects(self) -> set[bytes]:
        """The names of the effects of this play."""
        return {words[0] for payload in self.payloads.values() for words in effects_of(payload)}


def play(seed: int, steps: int = STEPS) -> dict[str, int]:
    return RulesFleet(seed, steps).run()


if __name__ == "__main__":
    played = play_seeds("tests.sim.rules_fleet", lambda seed, steps: Play(play(seed, steps)), STEPS)
    sys.exit(played)

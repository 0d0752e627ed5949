"""The clients of a simulated world: each has a role and uses its replies for later requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.sim.model.clients import Request
from tests.sim.replay import COUNTER, HALVES
from tests.sim.users import new_rules
from tests.support.resp import Map, Null, Reply, facts_of

FIELDS = [b"t", b"name", b"", b"\x00\r\n", b"temperature"]
GROUPS = [b"g", b"h"]
# The roles in a world: all, or a few that interact closely.
ROLES = (
    "producer plain group group queue queue acker mixed mixed deleter evicter strings consumer "
    "consumer expirer expirer counter counter pairer unblocker watcher watcher claimer claimer "
    "repeater sender pager"
)
THEMES = (
    "claimer claimer claimer consumer consumer producer",
    "counter pairer watcher expirer producer deleter",
    "repeater repeater evicter claimer plain",
    "queue consumer unblocker producer group",
    "sender sender sender evicter deleter plain",
    "pager pager producer evicter deleter claimer",
)
WORKERS = "worker worker worker consumer queue claimer producer producer"
SCHEDULERS = "scheduler scheduler scheduler consumer plain keeper renamer deleter expirer"
HEAPS = b"heap", b"heap2"  # copies of it
STOCK = b"stock"
# Each entry of a pile has its own block, and there are more blocks than are freed in one step.
HEAP_NODE_BYTES = 30
PILE_ENTRIES = 1400
RULES_CHANGE = 0.4  # of the requests of a client that changes rules
TEARING = (b"FLUSHDB", b"FLUSHALL", b"SWAPDB")  # remove one half of a pair


@dataclass(slots=True)
class Profile:
    """The properties of a seed's world."""

    fsync: str = "always"
    group_fsync: str = "always"
    clients: int = 6
    keys: int = 2
    databases: int = 1
    node_entries: int = 4
    node_bytes: int = 200
    ttls_ms: tuple[int, ...] = (0,)
    retries_ms: tuple[int, ...] = (0, 1, 20)
    expires_ms: tuple[int, ...] = (0, 30, 200)
    blocks_ms: tuple[int, ...] = (0, 5, 60)
    pipeline: int = 3
    disk_fails: bool = False
    disk_fills: bool = False
    disk_is_slow: bool = False
    clock_jumps: bool = False
    crashes: bool = True
    rewrite_bytes: int = 64 << 20
    bulky: bool = False
    fsync_changes: bool = False
    appends: int = 4
    transactions: float = 0.1
    lives_ms: tuple[int, ...] = (1, 30, 400)
    renames: bool = False
    policies: bool = False
    policies_by_blocks: bool = False
    heaps: bool = False
    memory: str = ""  # how it is limited: "", "refuses", "evicts"
    roles: str = ROLES
    producers_max: int = 100_000
    refuses_large: bool = False
    queue_bytes: int = 64 << 20

    @staticmethod
    def drawn(chance: random.Random) -> Profile:
        profile = Profile(
            fsync=chance.choice(["always"] * 6 + ["everysec"] * 2 + ["no"]),
            clients=chance.choice([2, 3, 5, 8, 12]),
            keys=chance.choice([1, 1, 2, 3, 150]),
            databases=chance.choice([1, 1, 2]),
            node_entries=chance.choice([1, 2, 3, 10, 100]),
            node_bytes=chance.choice([30, 100, 4096]),
            ttls_ms=chance.choice([(0,), (0, 50), (40,), (10, 300, 0)]),
            retries_ms=chance.choice([(0,), (1, 20), (0, 5, 50), (30,), (100,)]),
            expires_ms=chance.choice([(0,), (0, 30), (25, 200), (0, 500)]),
            blocks_ms=chance.choice([(0,), (5,), (0, 3, 60), (0, 500)]),
            pipeline=chance.choice([1, 1, 3, 8]),
            crashes=chance.random() < 0.8,
            rewrite_bytes=chance.choice([64 << 20, 4000, 20_000]),
            appends=chance.choice([1, 4, 10]),
            transactions=chance.choice([0, 0.1, 0.5]),
            lives_ms=chance.choice([(1, 30, 400), (20,), (5000,)]),
            renames=chance.random() < 0.4,
            policies=chance.random() < 0.3,
            roles=ROLES if chance.random() < 0.6 else chance.choice(THEMES),
            producers_max=chance.choice([1, 2, 100_000]),
        )
        if chance.random() < 0.15:
            profile.clock_jumps = True
            # While the clock was ahead, data expired that would still exist after the clock went
            # back.
            profile.roles = profile.roles.replace("repeater", "plain")
            profile.ttls_ms = profile.expires_ms = (0,)
        if profile.renames:
            # A group that has ended but was not deleted yet, moved to a key where a reader waits
            # for a group with its name: the order is not defined.
            profile.ttls_ms = (0,)
        profile.policies_by_blocks = profile.policies and chance.random() < 0.7
        if chance.random() < 0.12:
            profile.heaps = True
            profile.node_bytes = HEAP_NODE_BYTES
        if chance.random() < 0.15:
            profile.memory = chance.choice(["refuses", "evicts", "evicts"])
        if chance.random() < 0.3:
            profile.group_fsync = "everysec"
        profile.disk_fails = chance.random() < 0.15
        profile.disk_fills = not profile.disk_fails and chance.random() < 0.1
        profile.disk_is_slow = chance.random() < 0.15
        profile.bulky = not profile.disk_fails and chance.random() < 0.05
        profile.fsync_changes = not profile.disk_fails and chance.random() < 0.2
        return profile


class Player:
    """The behaviour of one client. `keys` are shared, `chance` is the world's."""

    def __init__(
        self,
        chance: random.Random,
        profile: Profile,
        now_ms: Callable[[], int],
        clients: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        """`clients` returns the numbers of the connected clients."""
        self.chance = chance
        self.profile = profile
        self.now_ms = now_ms
        self.clients = clients
        self.role = chance.choice(profile.roles.split())
        if profile.renames and chance.random() < 0.2:
            self.role = "renamer"
        if profile.policies and chance.random() < 0.2:
            self.role = "keeper"
        if profile.heaps and chance.random() < 0.3:
            self.role = "hoarder"
        if profile.bulky and chance.random() < 0.5:
            self.role = chance.choice(["bulky", "scanner"])
        self.key = self._any_key()
        self.group = chance.choice(GROUPS)
        self.retry = chance.random() < 0.8
        self.cursor = chance.choice([b"", b"0", b"$", b"0.0"])
        self.ids: list[tuple[bytes, bytes, bytes]] = []  # key, group, id: to acknowledge
        self.last_ids: dict[bytes, bytes] = {}
        self.tickets: list[bytes] = []
        self.page = b"-"
        self.number = 0
        self.sent: dict[bytes, int] = {}  # the last number under each name
        self.script: list[list[Request]] = []  # the next requests, in order
        self.counter = b""
        self.ruler: random.Random | None = None  # changes the rules of the restricted user
        self.count: bytes | None = None  # the last value of the counter, `?` if unknown

    def _any_key(self) -> bytes:
        return b"s%d" % self.chance.randrange(self.profile.keys)

    def next_requests(self) -> list[Request]:
        """The next requests, in one or several pieces."""
        if self.role == "scanner":  # the long reply comes last
            before = self._append() if self.chance.random() < 0.5 else (b"PING",)
            return [before, self._as_scanner()]
        if self.role == "counter":
            return self._count_one_more()
        if self.role == "pairer":
            return self._set_a_pair()
        if not self.script:
            self.script = self._some_pieces()
        return self.script.pop(0)

    def _some_pieces(self) -> list[list[Request]]:
        said = [self.next_request() for _ in range(self.chance.randint(1, self.profile.pipeline))]
        chance = 0.7 if self.role == "watcher" else self.profile.transactions
        if self.chance.random() >= chance:
            return [said]
        end = (b"DISCARD",) if self.chance.random() < 0.1 else (b"EXEC",)
        watched: list[Request] = []
        if self.chance.random() < 0.5:
            watched = [(b"WATCH", self._any_key(), b"k%d" % self.chance.randrange(3))]
            if self.chance.random() < 0.05:
                watched.append((b"UNWATCH",))
        pieces = [watched, [(b"MULTI",)], said, [end]]
        if self.chance.random() < 0.05:  # ends without a begin, begins twice, watches too late
            pieces.insert(self.chance.randrange(5), [self.chance.choice(
                [(b"EXEC",), (b"MULTI",), (b"DISCARD",), (b"WATCH", b"k0")])])  # fmt: skip
        return self._cut([request for piece in pieces for request in piece])

    def _cut(self, requests: list[Request]) -> list[list[Request]]:
        """Cut requests into pieces, so that other clients run in between."""
        pieces: list[list[Request]] = [[]]
        for request in requests:
            if pieces[-1] and self.chance.random() < 0.4:
                pieces.append([])
            pieces[-1].append(request)
        return pieces

    def _count_one_more(self) -> list[Request]:
        """Increments a counter shared with other clients, in a transaction that watches it."""
        key = COUNTER + b"%d" % self.chance.randrange(2)
        if self.script:
            return self.script.pop(0)
        if self.count is None:
            self.counter = key
            self.count = b"?"
            return [(b"WATCH", key), (b"GET", key)]
        if self.count == b"?":
            return [(b"PING",)]
        more, self.count = b"%d" % (int(self.count) + 1), None
        self.script = self._cut([(b"MULTI",), (b"SET", self.counter, more), (b"EXEC",)])
        return self.script.pop(0)

    def _set_a_pair(self) -> list[Request]:
        """Sets both halves in one transaction, with a request between them that may tear the
        pair."""
        self.number += 1
        name, value = b"%d" % self.chance.randrange(3), b"%d" % self.number
        between = [self.next_request() for _ in range(self.chance.randint(0, 3))]
        between = [words for words in between if words[0] not in TEARING]
        first, second = HALVES
        return [(b"MULTI",), (b"SET", first + name, value), *between,
                (b"SET", second + name, value), (b"EXEC",)]  # fmt: skip

    def next_request(self) -> Request:
        if self.ruler is not None and self.ruler.random() < RULES_CHANGE:
            return new_rules(self.ruler)
        if self.chance.random() < 0.02:
            return self._odd()
        return getattr(self, "_as_" + self.role)()  # type: ignore[no-any-return]

    def learn(self, request: Request, reply: Reply) -> None:
        """Process a reply."""
        name = request[0]
        if name == b"GET" and self.count == b"?" and request[1] == self.counter:
            self.count = reply if isinstance(reply, bytes) else b"0"
        if name in (b"TAPPEND", b"TAPPENDONCE", b"XADD") and isinstance(reply, bytes):
            self.last_ids[request[1]] = reply
        elif name == b"TSCHEDULE" and isinstance(reply, bytes):
            self.tickets = [*self.tickets[-4:], reply]
        elif name == b"TREAD" and isinstance(reply, list):
            start = 1 if b"WITHINFO" in request else 0
            ids = [entry[0] for entry in reply[start:] if isinstance(entry, list)]
            if b"GROUP" in request:
                group = request[request.index(b"GROUP") + 1]
                self.ids += [(request[1], group, i) for i in ids if isinstance(i, bytes)]
            elif ids and isinstance(ids[-1], bytes):
                self.cursor = ids[-1]
        elif name == b"TBLOCKS" and isinstance(reply, list | Map):
            following = facts_of(reply)[b"next-id"]
            self.page = following if isinstance(following, bytes) else b"-"
        elif name == b"XREADGROUP":
            self.ids += [(key, request[2], i) for key, i in read_by_consumer(reply)]

    # Roles

    def pile(self) -> list[Request]:
        """Appends that make the stream that heaps are copied from."""
        return [(b"TAPPEND", STOCK, b"n", b"%030d" % n) for n in range(PILE_ENTRIES)]

    def _as_hoarder(self) -> Request:
        """Makes large streams and deletes them, completely or partly."""
        heap, other = self.chance.sample(HEAPS, 2)
        roll = self.chance.random()
        if roll < 0.3:
            return b"COPY", STOCK, heap, b"DB", b"0", b"REPLACE"
        keep = b"%d" % self.chance.choice([0, 3, 50, 300, 1200])
        if roll < 0.5:
            return self.chance.choice(
                [(b"XTRIM", heap, b"MAXLEN", keep), (b"TAPPEV", heap, b"COUNT", keep),
                 (b"TAPPEV", heap, b"COUNT", keep, *self._fields()), self._append(heap)]
            )  # fmt: skip
        if roll < 0.6:
            size = b"%d" % (10 * int(keep))
            limits = self.chance.choice(
                [(b"MAXLEN", keep), (b"MAXAGE", keep), (b"MAXBYTES", size), (b"MAXLEN", b"0")]
            )
            return b"TPOLICY", heap, *limits, self.chance.choice([b"EXACT", b"APPROX"])
        if roll < 0.75:
            return self.chance.choice(
                [(b"DEL", heap), (b"DEL", *HEAPS), (b"SET", heap, b"no stream"),
                 (b"COPY", other, heap, b"DB", b"0", b"REPLACE"), (b"PEXPIRE", heap, b"20"),
                 (b"XTRIM", heap, b"MAXLEN", b"0"), (b"FLUSHDB",)]
            )  # fmt: skip
        if roll < 0.85:
            start = self.chance.choice([b"-", self.page])
            return b"TBLOCKS", heap, start, b"+", b"COUNT", self.chance.choice([b"1", b"300"])
        return self.chance.choice(
            [(b"XLEN", heap), (b"TRANGE", heap, b"-", b"+", b"COUNT", b"5"), (b"BGREWRITEAOF",),
             (b"TSEEK", heap, b"0", b"1000")]
        )  # fmt: skip

    def _as_pager(self) -> Request:
        """Reads whole blocks, page by page."""
        key = self.key if self.chance.random() < 0.9 else self._any_key()
        if self.chance.random() < 0.15:
            return self._append(key)
        start = self.chance.choice(
            [self.page, self.page, self.page, b"-", self.last_ids.get(key, b"0")]
        )
        end = b"+" if self.chance.random() < 0.8 else self.last_ids.get(key, b"+")
        options: Request = ()
        if self.chance.random() < 0.6:
            options += b"COUNT", self.chance.choice([b"1", b"2", b"5"])
        if self.chance.random() < 0.3:
            options += b"BYTES", self.chance.choice([b"1", b"200", b"1000"])
        return b"TBLOCKS", key, start, end, *options

    def _as_bulky(self) -> Request:
        """Few large entries: a read of them is sent in slices."""
        self.number += 1
        value = b"%d" % self.number * self.chance.choice([10_000, 40_000])
        return b"TAPPEV", b"bulk", b"COUNT", b"8", b"v", value

    def _as_scanner(self) -> Request:
        roll = self.chance.random()
        if roll < 0.2:
            return b"TBLOCKS", b"bulk", b"-", b"+"
        if roll < 0.5:
            return b"TRANGE", b"bulk", b"-", b"+"
        return b"TREAD", b"bulk", b"0", b"1000"

    def _as_producer(self) -> Request:
        return self._append()

    def _as_plain(self) -> Request:
        words = [b"TREAD", self.key, self.cursor, self._count()]
        if self.chance.random() < 0.7:
            words += [b"BLOCK", self._ms(self.profile.blocks_ms)]
        if self.chance.random() < 0.3:
            words.append(b"WITHINFO")
        return tuple(words)

    def _as_group(self) -> Request:
        """Reads and acknowledges most of the entries."""
        if self.ids and self.chance.random() < 0.5:
            return self._ack()
        return self._group_read()

    def _as_queue(self) -> Request:
        """Waits like a worker: one entry at a time, acknowledged, sometimes not."""
        if self.ids:
            if self.chance.random() < 0.75:
                return self._ack()
            self.ids.pop()
        return self._group_read(count=b"1", block=True)

    def _as_consumer(self) -> Request:
        """Uses the X commands: creates the group and reads it as a named consumer."""
        roll = self.chance.random()
        if roll < 0.15:
            start = self.chance.choice([b"$", b"0"])
            return b"XGROUP", b"CREATE", self.key, self.group, start, b"MKSTREAM"
        if roll < 0.18:
            return self.chance.choice(
                [(b"XGROUP", b"DESTROY", self.key, self.group),
                 (b"XGROUP", b"DELCONSUMER", self.key, self.group, b"alice"),
                 (b"XGROUP", b"SETID", self.key, self.group, b"$")]
            )  # fmt: skip
        if self.ids and roll < 0.4:
            return b"XACK", *(word.replace(b".", b"-") for word in self._ack()[1:])
        name = self.chance.choice([b"alice", b"bob"])
        words = [b"XREADGROUP", b"GROUP", self.group, name]
        if self.chance.random() < 0.7:
            words += [b"COUNT", self.chance.choice([b"1", b"2", b"10"])]
        if self.chance.random() < 0.6:
            words += [b"BLOCK", self._ms(self.profile.blocks_ms)]
        if self.chance.random() < 0.1:
            words.append(b"NOACK")
        if self.chance.random() < 0.2:
            words += [b"CLAIM", self._ms((0, 10, 100))]
        keys = [self.key] if self.chance.random() < 0.7 else [self.key, self._any_key()]
        ids = [self.chance.choice([b">", b">", b">", b">", b"0"]) for _ in keys]
        return (*words, b"STREAMS", *keys, *ids)

    def _as_claimer(self) -> Request:
        """Claims entries of other consumers, releases them, deletes entries no longer needed."""
        if self.chance.random() < 0.4:
            return self._as_consumer()
        key, ids = self.key, self._some_ids()
        who = (key, self.group, self.chance.choice([b"alice", b"bob", b"carol"]))
        idle = self._ms((0, 0, 10, 100))
        policy = self.chance.choice([b"KEEPREF", b"DELREF", b"ACKED"])
        block = (b"IDS", b"%d" % len(ids), *ids)
        just = self.chance.choice([(), (b"JUSTID",)])
        how = self.chance.choice([(), (b"IDLE", b"50"), (b"RETRYCOUNT", b"7"), (b"FORCE",),
                                  (b"LASTID", ids[0])])  # fmt: skip
        kind = self.chance.choice([b"SILENT", b"FAIL", b"FATAL"])
        rest = self.chance.choice([(), (), (b"FORCE",), (b"RETRYCOUNT", b"3")])
        count = self.chance.choice([b"1", b"2", b"10"])
        return self.chance.choice(
            [(b"XCLAIM", *who, idle, *ids, *how, *just), (b"XNACK", *who[:2], kind, *block, *rest),
             (b"XAUTOCLAIM", *who, idle, b"0-0", b"COUNT", count, *just),
             (b"XDELEX", key, policy, *block), (b"XACKDEL", *who[:2], policy, *block),
             (b"XTRIM", key, b"MINID", max(ids), policy), (b"XDEL", key, *ids)]
        )  # fmt: skip

    def _as_worker(self) -> Request:
        """Works on a managed group: gives entries back, keeps them longer, changes the rules."""
        roll, key = self.chance.random(), self.key
        if roll < 0.12:
            start = self.chance.choice([b"$", b"0"])
            backoff = self.chance.choice([(), (b"BACKOFF", b"0"), (b"BACKOFF", b"2", b"5", b"40")])
            timeout = b"TIMEOUT", self.chance.choice([b"10", b"50", b"50", b"50", b"1500", b"0"])
            return b"TGROUP", key, self.group, b"START", start, *timeout, *backoff
        who = key, self.group, self.chance.choice([b"alice", b"alice", b"bob", b""])
        ids = self._some_ids()
        block = (b"IDS", b"%d" % len(ids), *ids)
        if roll < 0.3:
            mode = self.chance.choice([b"SILENT", b"FAIL", b"FAIL", b"FATAL"])
            delay = self.chance.choice([(), (b"DELAY", b"20"), (b"DELAY", b"1234")])
            delay = () if mode == b"FATAL" else delay
            which = block if self.chance.random() < 0.8 else (b"ALL",)
            return b"TNACK", *who, mode, *delay, *which
        if roll < 0.45:
            return b"TEXTEND", *who, self.chance.choice([b"5", b"60", b"2345"]), *block
        if roll < 0.52:
            return b"XGROUP", b"DELCONSUMER", key, self.group, who[2] or b"bob"
        return self._as_consumer()

    def _as_scheduler(self) -> Request:
        """Schedules entries, by name or without one, and cancels some."""
        roll, key = self.chance.random(), self._any_key()
        name = self.chance.choice([b"", b"", b"a", b"b", b"c"])
        if roll < 0.6:
            when = b"IN", self._ms((0, 1, 5, 20, 100, 100, 700, 5000))
            if self.chance.random() < 0.3:
                when = b"AT", b"%d" % (self.now_ms() + self.chance.randint(-30, 200))
            return b"TSCHEDULE", key, *when, name, *self._fields()
        if roll < 0.7:
            return b"TCANCEL", key, b"NAME", name, b"a"
        if roll < 0.8 and self.tickets:
            ticket = self.chance.choice(self.tickets)
            return b"TCANCEL", key, ticket, ticket, b"1.1"
        if roll < 0.95:
            return b"TSCHEDULED", key, b"-", b"+", b"COUNT", self._count()
        return self._as_plain()

    def _some_ids(self) -> list[bytes]:
        """IDs of known entries at its key; an ID may occur twice."""
        known = [i for k, _, i in self.ids if k == self.key] + [b"1-1"]
        if self.key in self.last_ids:
            known.append(self.last_ids[self.key])
        return [
            self.chance.choice(known).replace(b".", b"-")
            for _ in range(self.chance.choice([1, 1, 2, 3]))
        ]

    def _as_repeater(self) -> Request:
        """Sends its messages more than once; each must count once."""
        if self.chance.random() < 0.05:
            bounds = (b"IDMP-DURATION", self.chance.choice([b"1", b"2"]), b"IDMP-MAXSIZE", b"2")
            return b"XCFGSET", self.key, *bounds
        message = (b"IDMP", b"p%d" % self.chance.randrange(2), b"%d" % self.chance.randrange(4))
        trim = self.chance.choice([(), (), (b"MAXLEN", b"3")])
        return b"XADD", self.key, *message, *trim, b"*", *self._fields()

    def _as_sender(self) -> Request:
        """Numbers its messages and ignores the replies: it sends messages again that may exist."""
        key = self.key if self.chance.random() < 0.8 else self._any_key()
        roll = self.chance.random()
        if roll < 0.15:
            after = self.last_ids.get(key, b"0") if self.chance.random() < 0.5 else b"0"
            return b"TSEEK", key, after, self._count()
        if roll < 0.3:
            ms = self.now_ms() + self.chance.randint(-20, 20)
            entry_id = b"%d.%d" % (ms, self.chance.randrange(3))
            return b"TAPPENDONCE", key, b"ID", entry_id, *self._fields()
        name = b"p%d" % self.chance.randrange(3)
        step = self.chance.choice([-2, 0, 0, 1, 1, 1, 5])
        self.sent[name] = max(0, self.sent.get(name, 0) + step)
        if roll < 0.6:
            return self._many(key, name)
        number = b"%d" % self.sent[name]
        return b"TAPPENDONCE", key, b"PRODUCER", name, number, *self._fields()

    def _many(self, key: bytes, name: bytes) -> Request:
        """Entries of one stream or two, some of which may have been sent before."""
        keys = [key] if self.chance.random() < 0.7 else [key, self._any_key()]
        words = [b"TAPPENDMANY", b"%d" % len(keys), *keys]
        by_id = self.chance.random() < 0.2
        words += [b"ID"] if by_id else [b"PRODUCER", name]
        for _ in keys:
            count = self.chance.choice([1, 2, 3, 8])
            words.append(b"%d" % count)
            start = self.now_ms() + self.chance.randint(-20, 20) if by_id else self.sent[name]
            for number in range(start, start + count):
                fields = self._fields()
                words += [b"%d" % number, b"%d" % (len(fields) // 2), *fields]
        if not by_id:
            self.sent[name] += count - 1
        return tuple(words)

    def _as_acker(self) -> Request:
        self.ids += [(self.key, self.group, i) for i in self.last_ids.values()]
        if self.ids and self.chance.random() < 0.6:
            return self._ack()
        return self._group_read()

    def _as_deleter(self) -> Request:
        key = self._any_key()
        roll = self.chance.random()
        if roll < 0.1:
            return b"DEL", key, self._any_key()
        if roll < 0.12:
            return (self.chance.choice([b"FLUSHDB", b"FLUSHALL"]),)
        if roll < 0.15:
            return b"SET", key, b"no stream"
        if roll < 0.5 and key in self.last_ids:
            return b"XDEL", key, self.last_ids[key].replace(b".", b"-")
        return self._append(key)

    def _as_evicter(self) -> Request:
        roll = self.chance.random()
        key = self._any_key()
        fields = self._fields() if roll < 0.5 else ()
        if self.chance.random() < 0.5:
            return b"TAPPEV", key, b"COUNT", b"%d" % self.chance.choice([0, 1, 3, 10]), *fields
        return b"TAPPEV", key, b"TIME", b"%d" % self.chance.choice([0, 1, 10, 200]), *fields

    def _as_strings(self) -> Request:
        key = b"k%d" % self.chance.randrange(self.profile.keys)
        if self.chance.random() < 0.5:
            return b"SET", key, b"%d" % self.chance.randrange(10**6)
        return (b"GET", key) if self.chance.random() < 0.7 else (b"DEL", key)

    def _as_expirer(self) -> Request:
        """Keys that expire; strings and streams."""
        key = self._any_key() if self.chance.random() < 0.3 else b"k%d" % self.chance.randrange(3)
        life = self._ms(self.profile.lives_ms)
        at = b"%d" % (self.now_ms() + self.chance.choice([-5, 0, 1, 20, 300]))
        return self.chance.choice(
            [(b"SET", key, life, b"PX", life), (b"SET", key, life, b"PX", life),
             (b"SET", key, b"kept", b"KEEPTTL"), (b"SET", key, b"1", b"NX", b"PX", life),
             (b"PEXPIRE", key, life), (b"PEXPIREAT", key, at), (b"PERSIST", key), (b"PTTL", key),
             (b"GET", key), (b"EXISTS", key, key), (b"APPEND", key, b"7"), (b"INCR", key)]
        )  # fmt: skip

    def _as_renamer(self) -> Request:
        key, other = self._any_key(), self._any_key()
        if self.chance.random() < 0.3:
            key = b"k%d" % self.chance.randrange(3)
        to = b"%d" % self.chance.randrange(self.profile.databases)
        return self.chance.choice(
            [(b"RENAME", key, other), (b"RENAMENX", key, b"t"), (b"RENAME", b"t", other),
             (b"MOVE", key, to), (b"COPY", key, other, b"DB", to), (b"TAPPEND", key, b"n", b"0"),
             (b"COPY", key, other, b"DB", to, b"REPLACE"), (b"SWAPDB", b"0", to)]
        )  # fmt: skip

    def _as_keeper(self) -> Request:
        """Sets retention policies."""
        key = self._any_key()
        limits = [
            (b"MAXLEN", self.chance.choice([b"0", b"1", b"2", b"10"])),
            (b"MAXAGE", self.chance.choice([b"0", b"1", b"50", b"400", b"2000"])),
        ]
        how = b"EXACT"
        if self.profile.policies_by_blocks:
            limits.append((b"MAXBYTES", self.chance.choice([b"0", b"1", b"60", b"400", b"2000"])))
            how = self.chance.choice([b"EXACT", b"APPROX", b"APPROX"])
        chosen = self.chance.choice([limits, limits[:1], limits[1:2], limits[-1:]])
        words = [word for pair in chosen for word in pair]
        return self.chance.choice(
            [(b"TPOLICY", key, *words, how), (b"TPOLICY", key, *words, how),
             (b"TPOLICY", key), self._append(key), self._append(key)]
        )  # fmt: skip

    def _as_unblocker(self) -> Request:
        number = b"%d" % self.chance.choice([*self.clients(), 0])
        how = self.chance.choice([(), (b"TIMEOUT",), (b"ERROR",)])
        return b"CLIENT", b"UNBLOCK", number, *how

    def _as_watcher(self) -> Request:
        return self._as_mixed()

    def _as_pairer(self) -> Request:
        return self._as_mixed()

    def _as_mixed(self) -> Request:
        role = self.chance.choice(
            ["producer", "plain", "group", "acker", "deleter", "evicter", "strings", "consumer",
             "expirer", "claimer"]
        )  # fmt: skip
        return getattr(self, "_as_" + role)()  # type: ignore[no-any-return]

    # Requests

    def _append(self, key: bytes | None = None) -> Request:
        key = self._any_key() if key is None else key
        roll = self.chance.random()
        if roll < 0.75:
            return b"TAPPEND", key, *self._fields()
        if roll < 0.85:
            return b"XADD", key, b"*", *self._fields()
        if roll < 0.95:
            keep = (b"MAXLEN", b"%d" % self.chance.choice([0, 2, 9]))
            # If a policy trims by blocks, it is unknown which of two trims removed a reference.
            by_blocks = self.profile.policies_by_blocks or self.profile.heaps
            policy = () if by_blocks else self.chance.choice([(), (), (b"DELREF",)])
            return b"XADD", key, *policy, *keep, b"*", *self._fields()
        ms = self.now_ms() + self.chance.randint(-20, 20)
        return b"XADD", key, b"%d-%d" % (ms, self.chance.randrange(3)), *self._fields()

    def _fields(self) -> Request:
        self.number += 1
        words = [b"n", b"%d" % self.number]
        for _ in range(self.chance.choice([0, 0, 1, 3])):
            words += [self.chance.choice(FIELDS), b"v" * self.chance.choice([0, 1, 20, 300])]
        return tuple(words)

    def _count(self) -> bytes:
        return self.chance.choice([b"1", b"1", b"2", b"10", b"1000", b"0"])

    def _ms(self, choices: tuple[int, ...]) -> bytes:
        return b"%d" % self.chance.choice(choices)

    def _group_read(self, count: bytes | None = None, block: bool = False) -> Request:
        key = self.key if self.chance.random() < 0.9 else self._any_key()
        start = self.chance.choice([b"", b"0", self.cursor, b">"])
        words = [b"TREAD", key, start, count or self._count()]
        if block or self.chance.random() < 0.6:
            words += [b"BLOCK", self._ms(self.profile.blocks_ms)]
        words += [b"GROUP", self.group, self._ms(self.profile.ttls_ms)]
        if self.retry:
            words += [b"RETRY", self._ms(self.profile.retries_ms)]
            words.append(self._ms(self.profile.expires_ms))
        if self.chance.random() < 0.2:
            words.append(b"WITHINFO")
        return tuple(words)

    def _ack(self) -> Request:
        key, group, _ = self.ids[0]
        of_it = [i for k, g, i in self.ids if (k, g) == (key, group)][: self.chance.randint(1, 5)]
        self.ids = [one for one in self.ids if one != (key, group, one[2]) or one[2] not in of_it]
        return b"TACK", key, group, *of_it

    def _odd(self) -> Request:
        if self.profile.fsync_changes and self.chance.random() < 0.3:
            mode = self.chance.choice([b"always", b"always", b"everysec", b"no"])
            return b"CONFIG", b"SET", b"appendfsync", mode
        roll = self.chance.random()
        if roll < 0.5:
            return (self.chance.choice([b"BGSAVE", b"BGSAVE", b"BGREWRITEAOF", b"SAVE"]),)
        if roll < 0.8:
            return b"TRANGE", self._any_key(), b"-", b"+"
        return self.chance.choice([(b"PING",), (b"XLEN", self._any_key())])


def read_by_consumer(reply: Reply) -> list[tuple[bytes, bytes]]:
    """(key, ID) of the entries in an XREADGROUP's reply, without entries that no longer exist."""
    pairs = reply.pairs if isinstance(reply, Map) else reply if isinstance(reply, list) else []
    return [
        (key, entry[0])
        for key, entries in pairs  # type: ignore[misc]
        for entry in entries  # type: ignore[union-attr]
        if not isinstance(entry[1], Null)
    ]

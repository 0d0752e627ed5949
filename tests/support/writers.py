"""Writers with reservations, readers that follow them, and the invariants of both.

A player is a generator: it yields requests and gets the replies. Therefore the same players run
against a real server that is killed (`tests/crash/writer_rounds.py`) and against a simulated one
(`tests/sim/test_writers.py`). A record of the replies survives every server.

After each restart `check` compares the record with the data: no ID was assigned twice, completed
and aborted reservations stay so, open reservations can still be completed, and a reader at an ID
has got every entry up to that ID.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from .client import as_bytes, as_list
from .resp import Error, Reply

STREAMS = (b"a", b"b")
LEASE_MS = b"600000"
EntryId = tuple[int, int]
Request = tuple[bytes, ...]
Asking = Generator[Request, Reply, None]
Row = tuple[EntryId, bytes]


def id_of(reply: Reply) -> EntryId:
    ms, _, seq = as_bytes(reply).replace(b"-", b".").partition(b".")
    return int(ms), int(seq)


def text_of(entry_id: EntryId) -> bytes:
    return b"%d.%d" % entry_id


@dataclass
class Book:
    """The server's replies about one stream."""

    handed_out: set[EntryId] = field(default_factory=set)
    tokens: dict[EntryId, bytes] = field(default_factory=dict)  # requested or confirmed
    completed: set[EntryId] = field(default_factory=set)
    given_up: set[EntryId] = field(default_factory=set)
    writers: dict[EntryId, bytes] = field(default_factory=dict)  # of reservations
    doubtful: set[bytes] = field(default_factory=set)  # tokens of appends without a reply
    position: EntryId = (0, 0)


@dataclass
class Mine:
    """A writer's name and its open reservations; survives the server and all connections."""

    name: bytes
    key: bytes
    lease_ms: bytes = LEASE_MS
    open: dict[EntryId, bool] = field(default_factory=dict)  # True: a completion has no reply

    @property
    def is_patient(self) -> bool:
        """True if none of its leases can end during a test."""
        return self.lease_ms == LEASE_MS


class Record:
    """The shared record of all players, and its lock."""

    def __init__(self, writers: int) -> None:
        self.lock = threading.Lock()
        self.books = {key: Book() for key in STREAMS}
        self.writers = [Mine(b"w%d" % i, STREAMS[i % len(STREAMS)]) for i in range(writers)]
        self.answers = 0
        self.refused = 0
        self._token = 0

    def token(self) -> bytes:
        with self.lock:
            self._token += 1
            return b"%d" % self._token

    def hand_out(self, key: bytes, ids: list[EntryId]) -> None:
        with self.lock:
            book = self.books[key]
            twice = book.handed_out.intersection(ids)
            assert not twice, f"handed out twice: {sorted(twice)}"
            book.handed_out.update(ids)

    def see_position(self, key: bytes, position: EntryId, before: EntryId) -> None:
        """Record a position in a reply, and the largest one known at the request."""
        with self.lock:
            assert position >= before, f"the position went back from {before} to {position}"
            self.books[key].position = max(self.books[key].position, position)


class Player:
    """One client. An error whose text has one of the words in `may_refuse` changes nothing."""

    def __init__(self, record: Record, seed: str, may_refuse: tuple[str, ...] = ()) -> None:
        self.record = record
        self.chance = random.Random(seed)
        self.may_refuse = may_refuse

    def play(self) -> Asking:
        """An endless sequence of requests."""
        yield from self.begin()
        while True:
            yield from self.act()

    def begin(self) -> Asking:
        yield from ()

    def act(self) -> Asking:
        raise NotImplementedError

    def is_refused(self, reply: Reply, *words: str) -> bool:
        """True if a request was refused for one of these reasons; any other error is a fault."""
        if not isinstance(reply, Error):
            return False
        self.record.refused += 1
        assert any(word in reply.text for word in (*self.may_refuse, *words)), reply
        return True


class Writer(Player):
    """Reserves, completes late and out of order, renews, gives up, vanishes. The open IDs of a name
    are known to the next one that has it."""

    def __init__(
        self, record: Record, seed: str, mine: Mine, may_refuse: tuple[str, ...] = ()
    ) -> None:
        super().__init__(record, seed, may_refuse)
        self.mine = mine
        self.who = (mine.key, mine.name)
        self.book = record.books[mine.key]

    def begin(self) -> Asking:
        """Abort what the previous writer of this name reserved without getting a reply."""
        known = [text_of(i) for i in self.mine.open]
        reply = yield (b"TABORT", *self.who, *((b"EXCEPT", *known) if known else ()))
        self.is_refused(reply)

    def act(self) -> Asking:
        roll = self.chance.random()
        if not self.mine.open or (roll < 0.4 and len(self.mine.open) < 12):
            yield from self._reserve()
        elif roll < 0.8:
            yield from self._complete(self.chance.choice(list(self.mine.open)))
        elif roll < 0.9:
            yield from self._give_up(self.chance.choice(list(self.mine.open)))
        elif roll < 0.95:
            self.is_refused((yield (b"TRENEW", *self.who, self.mine.lease_ms)))
        else:
            yield from self._vanish()

    def _reserve(self) -> Asking:
        count = self.chance.choice([1, 1, 1, 3])
        lease = b"LEASE", self.mine.lease_ms
        reply = yield (b"TRESERVE", *self.who, b"COUNT", b"%d" % count, *lease)
        if self.is_refused(reply, "STALLED"):
            return
        ids = [id_of(one) for one in as_list(reply)]
        assert ids == sorted(set(ids))
        assert len(ids) == count
        self.record.hand_out(self.mine.key, ids)
        self.book.writers.update(dict.fromkeys(ids, self.mine.name))
        self.mine.open.update(dict.fromkeys(ids, False))

    def _complete(self, entry_id: EntryId) -> Asking:
        before, asked_before = self.book.position, self.mine.open[entry_id]
        token = self.book.tokens.get(entry_id) or self.record.token()
        self.book.tokens[entry_id] = token
        self.mine.open[entry_id] = True
        reply = yield (b"TCOMPLETE", *self.who, text_of(entry_id), b"n", token)
        if isinstance(reply, Error) and reply.text.startswith("FACTDONE"):
            assert asked_before, reply
        elif isinstance(reply, Error) and reply.text.startswith("FACTLOST"):
            assert not self.mine.is_patient, reply
            self.book.given_up.add(entry_id)
            del self.mine.open[entry_id]
            return
        elif self.is_refused(reply, "STALLED"):
            self.mine.open[entry_id] = asked_before
            return
        else:
            self.record.see_position(self.mine.key, id_of(reply), before)
        self.book.completed.add(entry_id)
        del self.mine.open[entry_id]

    def _give_up(self, entry_id: EntryId) -> Asking:
        if self.mine.open[entry_id]:
            return
        del self.mine.open[entry_id]  # without a reply: completed or not
        reply = yield (b"TABORT", *self.who, text_of(entry_id))
        if self.is_refused(reply):
            self.mine.open[entry_id] = False
            return
        assert reply == 1 or not self.mine.is_patient
        self.book.given_up.add(entry_id)

    def _vanish(self) -> Asking:
        """Reserve under a name that is never used again; the lease ends."""
        reply = yield (b"TRESERVE", self.mine.key, b"gone", b"LEASE", b"30")
        if not self.is_refused(reply, "STALLED"):
            self.record.hand_out(self.mine.key, [id_of(reply)])


class Appender(Player):
    """Appends without reserving."""

    def act(self) -> Asking:
        key, token = self.chance.choice(STREAMS), self.record.token()
        yield from self.append(key, token, (b"TAPPEND", key, b"n", token))

    def append(self, key: bytes, token: bytes, request: Request, *refusals: str) -> Asking:
        book = self.record.books[key]
        book.doubtful.add(token)
        reply = yield request
        if not self.is_refused(reply, "STALLED", *refusals):
            entry_id = id_of(reply)
            self.record.hand_out(key, [entry_id])
            book.tokens[entry_id] = token
            book.completed.add(entry_id)
        book.doubtful.discard(token)


class Explicit(Appender):
    """Appends with explicit IDs around the current time."""

    def __init__(
        self, record: Record, seed: str, now_ms: Callable[[], int], may_refuse: tuple[str, ...] = ()
    ) -> None:
        super().__init__(record, seed, may_refuse)
        self._now_ms = now_ms

    def act(self) -> Asking:
        key, token = self.chance.choice(STREAMS), self.record.token()
        ms = self._now_ms() + self.chance.choice([-1000, -1, 0, 1, 2, 100])
        entry_id = b"%d-%d" % (ms, self.chance.randrange(3))
        refusals = "equal or smaller", "is not above"
        yield from self.append(key, token, (b"XADD", key, entry_id, b"n", token), *refusals)


class Keeper(Player):
    """Requests snapshots, rewrites and reloads, and checks the positions."""

    def __init__(
        self,
        record: Record,
        seed: str,
        requests: tuple[Request, ...],
        may_refuse: tuple[str, ...] = (),
    ) -> None:
        super().__init__(record, seed, may_refuse)
        self._requests = requests

    def act(self) -> Asking:
        yield self.chance.choice(self._requests)  # another one may be in progress
        for _ in range(self.chance.randint(1, 40)):
            key = self.chance.choice(STREAMS)
            before = self.record.books[key].position
            self.record.see_position(key, id_of((yield (b"TPOSITION", key))), before)


# ---------------------------------------------------------------- readers


class Reader:
    """The entries that one reader has got, over all connections."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.after = b"0.0"
        self.got: list[Row] = []

    def ask(self) -> Request:
        raise NotImplementedError

    def take(self, reply: Reply) -> None:
        raise NotImplementedError

    def check(self, entries: list[Row]) -> None:
        """Check that it has got every entry up to its position, once, and in order."""
        up_to = id_of(self.after)
        wanted = [one for one in entries if one[0] <= up_to]
        assert self.got == wanted, f"{type(self).__name__} has skipped an entry"

    def add(self, rows: Reply) -> None:
        for row in map(as_list, as_list(rows)):
            self.got.append((id_of(row[0]), as_bytes(row[2])))


class LogReader(Reader):
    """TREAD."""

    def ask(self) -> Request:
        return b"TREAD", self.key, self.after, b"20", b"BLOCK", b"20"

    def take(self, reply: Reply) -> None:
        if isinstance(reply, list) and reply:
            self.add(reply)
            self.after = text_of(self.got[-1][0])


class Follower(Reader):
    """TMREAD, with CLOCK on the second stream. The server has promised that no entry will ever be
    added up to the last `next`, so `check` keeps every (prev, next]."""

    def ask(self) -> Request:
        clock = (b"CLOCK",) if self.key == STREAMS[1] else ()
        return b"TMREAD", b"20", b"BLOCK", b"20", *clock, b"STREAMS", self.key, self.after

    def take(self, reply: Reply) -> None:
        _, prev, following, rows, ended, _ = as_list(as_list(reply)[0])
        assert (prev, ended) == (self.after, 0)
        assert id_of(following) >= id_of(prev)
        self.add(rows)
        self.after = as_bytes(following)


class Peeker(Reader):
    """TPEEK."""

    def ask(self) -> Request:
        return b"TPEEK", self.key, self.after, b"20", b"BLOCK", b"20"

    def take(self, reply: Reply) -> None:
        token, rows = as_list(reply)
        self.add(rows)
        self.after = as_bytes(token)

    def check(self, entries: list[Row]) -> None:
        """Check that entries it got that are not in the log yet are held, and that none came
        twice."""
        got = {i for i, _ in self.got}
        assert len(got) == len(self.got), "TPEEK: an entry came twice"
        below, _, rest = self.after.partition(b"~")
        to_come = {id_of(one) for one in rest.split(b",")} if rest else set()
        assert not to_come & got
        wanted = {i for i, _ in entries if i <= id_of(below)} - to_come
        assert wanted <= got, f"TPEEK misses {sorted(wanted - got)}"


def all_readers() -> list[Reader]:
    """One of each kind for each stream."""
    return [kind(key) for key in STREAMS for kind in (LogReader, Follower, Peeker)]


class Reading(Player):
    """A connection of a reader."""

    def __init__(self, record: Record, seed: str, reader: Reader) -> None:
        super().__init__(record, seed)
        self._reader = reader

    def act(self) -> Asking:
        reply = yield self._reader.ask()
        assert not isinstance(reply, Error), reply
        self._reader.take(reply)


# ---------------------------------------------------------------- what must be true


def check(record: Record, readers: list[Reader]) -> Asking:
    """Check all invariants; run it alone, after a start."""
    for key in STREAMS:
        yield from _check_stream(record, key, [one for one in readers if one.key == key])


def _check_stream(record: Record, key: bytes, readers: list[Reader]) -> Asking:
    book = record.books[key]
    while True:  # until no lease ends between the two requests
        position = id_of((yield (b"TPOSITION", key)))
        entries = _rows((yield (b"TRANGE", key, b"-", b"+")))
        if position == id_of((yield (b"TPOSITION", key))):
            break
    assert position >= book.position, f"the position went back from {book.position} to {position}"
    _check_log(book, entries, position)
    yield from _check_facts(book, key, dict(entries))
    for mine in record.writers:
        sure = [i for i, asked in mine.open.items() if not asked]
        if mine.key != key or not sure or not mine.is_patient:
            continue
        assert position < min(sure), "visible before everything below it is settled"
        texts = map(text_of, sure)
        renewed = yield (b"TRENEW", key, mine.name, LEASE_MS, *texts)
        assert renewed == len(sure), f"{len(sure)} are open, {renewed!r} were renewed"
    for reader in readers:
        reader.check(entries)


def _check_log(book: Book, entries: list[Row], position: EntryId) -> None:
    """Check that the log has only written entries, each once."""
    assert [i for i, _ in entries] == sorted({i for i, _ in entries})
    for entry_id, token in entries:
        assert entry_id not in book.given_up, f"{entry_id} was given up"
        if token in book.doubtful:
            assert entry_id not in book.handed_out, f"{entry_id} has been used twice"
            book.doubtful.discard(token)
            book.handed_out.add(entry_id)
            book.tokens[entry_id] = token
            book.completed.add(entry_id)
        assert book.tokens.get(entry_id) == token, f"{entry_id} has another entry"
    lost = {i for i in book.completed if i <= position} - {i for i, _ in entries}
    assert not lost, f"{sorted(lost)} are lost"


def _check_facts(book: Book, key: bytes, log: dict[EntryId, bytes]) -> Asking:
    """Check that completed entries exist or are held, and that aborted ones cannot be completed."""
    held = [i for i in book.completed if i not in log]
    wanted = [(i, "FACTDONE" if i in book.writers else "NORESERVATION") for i in held]
    wanted += [(i, "FACTLOST") for i in list(book.given_up)[-20:]]
    for entry_id, code in wanted:
        who = key, book.writers.get(entry_id, b"unknown")
        token = book.tokens[entry_id] if code == "FACTDONE" else b"again"
        reply = yield (b"TCOMPLETE", *who, text_of(entry_id), b"n", token)
        assert isinstance(reply, Error), (entry_id, reply)
        assert reply.text.startswith(code), (entry_id, reply)


def finish(readers: list[Reader]) -> Asking:
    """Abort all open reservations. Then every reader must reach the end, with all entries of the
    log."""
    for key in STREAMS:
        for row in map(as_list, as_list((yield (b"TPOSITION", key, b"WRITERS")))):
            yield (b"TABORT", key, as_bytes(row[0]))
        entries = _rows((yield (b"TRANGE", key, b"-", b"+")))
        for reader in readers:
            while reader.key == key and len(reader.got) < len(entries):
                count = len(reader.got)
                reader.take((yield reader.ask()))
                assert len(reader.got) > count, f"{type(reader).__name__} misses entries"
            assert reader.key != key or sorted(reader.got) == entries, type(reader)


def _rows(reply: Reply) -> list[Row]:
    return [(id_of(row[0]), as_bytes(row[2])) for row in map(as_list, as_list(reply))]

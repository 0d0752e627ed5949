"""Keys with an expiry, as the keyspace keeps them."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.captures import each
from tests.support.effort import examples

from millstream.storage.capture.capture import Capture
from millstream.storage.capture.captured_keys import Captured
from millstream.storage.keyspace.database import Database
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.swapdb import swap_databases

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
DATABASES = st.integers(0, 2)


class Expiring(RuleBasedStateMachine):
    """Against dicts: (database, key) -> (value, expiry or 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.keyspace = Keyspace(databases=3)
        self.keyspace.expiring = True
        self.gone: list[tuple[int, bytes]] = []
        self.keyspace.on_expired = lambda db, key: self.gone.append((db, key))
        self.now_ms = 1_000
        self.keyspace.set_time(self.now_ms)
        self.model: dict[tuple[int, bytes], tuple[object, int]] = {}
        self.captured: dict[tuple[int, bytes], tuple[object, int]] | None = None
        self.capture = None
        self.found: list[Captured] = []
        self.numbers = 0

    def live(self, place: tuple[int, bytes]) -> bool:
        value = self.model.get(place)
        if value is not None and value[1] and value[1] <= self.now_ms:
            del self.model[place]
        return place in self.model

    @rule(db=DATABASES, key=KEYS, keep=st.booleans())
    def set(self, db: int, key: bytes, keep: bool) -> None:
        self.numbers += 1
        kept = self.model[db, key][1] if keep and self.live((db, key)) else 0
        database = self.keyspace.databases[db]
        database.get(key)  # as every handler looks first
        value = b"%d" % self.numbers
        database.set(key, value, keep)
        self.model[db, key] = (value, kept)

    @rule(db=DATABASES, key=KEYS)
    def make_stream(self, db: int, key: bytes) -> None:
        if not self.live((db, key)):
            database = self.keyspace.databases[db]
            database.get(key)
            self.numbers += 1
            stream = database.make_stream(key, self.numbers)
            self.model[db, key] = (stream.incarnation, 0)

    @rule(db=DATABASES, key=KEYS)
    def delete(self, db: int, key: bytes) -> None:
        there = self.live((db, key))
        assert self.keyspace.databases[db].delete(key) == there
        self.model.pop((db, key), None)

    @rule(db=DATABASES, key=KEYS, in_ms=st.integers(0, 50))
    def expire(self, db: int, key: bytes, in_ms: int) -> None:
        if self.live((db, key)):
            at_ms = self.now_ms + in_ms if in_ms else 0
            self.keyspace.databases[db].set_expiry(key, at_ms)
            self.model[db, key] = (self.model[db, key][0], at_ms)

    @rule(db=DATABASES, key=KEYS, to=DATABASES, new_key=KEYS)
    def rename(self, db: int, key: bytes, to: int, new_key: bytes) -> None:
        if self.live((db, key)) and (db, key) != (to, new_key):
            databases = self.keyspace.databases
            databases[db].get(key)
            databases[db].rename(key, databases[to], new_key)
            self.model[to, new_key] = self.model.pop((db, key))

    @rule(first=DATABASES, second=DATABASES)
    def swap(self, first: int, second: int) -> None:
        swap_databases(self.keyspace, first, second)
        other = {first: second, second: first}
        self.model = {(other.get(db, db), key): value for (db, key), value in self.model.items()}

    @rule(db=DATABASES)
    def clear(self, db: int) -> None:
        self.keyspace.databases[db].clear()
        self.model = {place: value for place, value in self.model.items() if place[0] != db}

    @rule(ms=st.integers(1, 40), limit=st.integers(0, 3))
    def pass_time(self, ms: int, limit: int) -> None:
        self.now_ms += ms
        self.keyspace.set_time(self.now_ms)
        self.keyspace.expire_due(limit)

    @rule()
    def begin_capture(self) -> None:
        if self.capture is None:
            self.capture = Capture(self.keyspace)
            # Due keys that were not accessed still exist, and are captured.
            self.captured = {
                (db.index, key): (
                    db_value if isinstance(db_value, bytes) else db_value.incarnation,
                    db.expiry_ms(key),
                )
                for db in self.keyspace.databases
                for key, db_value in self.everything(db)
            }
            self.found = []

    def everything(self, db: Database) -> list[tuple[bytes, object]]:
        self.keyspace.expiring = False
        try:
            return [(key, db.get(key)) for key in db.keys()]  # noqa: SIM118 - it is no dict
        finally:
            self.keyspace.expiring = True

    @rule(size=st.integers(1, 5))
    def step_capture(self, size: int) -> None:
        if self.capture is None:
            return
        found = self.capture.step(size)
        if found is not None:
            self.found += each(found)
            return
        self.capture.close()
        self.capture = None
        seen = {}
        for one in self.found:
            value = one.meta["value"] if one.kind == "string" else one.meta["incarnation"]
            assert (one.db, one.key) not in seen, "captured twice"
            seen[one.db, one.key] = (value, one.meta.get("expires_ms", 0))
        assert seen == self.captured

    @invariant()
    def same(self) -> None:
        for place in list(self.model):
            self.live(place)
        for db in self.keyspace.databases:
            for key in (b"a", b"b", b"c", b"d"):
                value = db.get(key)
                if value is not None and not isinstance(value, bytes):
                    value = value.incarnation
                expected, expiry_ms = self.model.get((db.index, key), (None, 0))
                assert value == expected
                assert db.expiry_ms(key) == expiry_ms
            expiring = [value[1] for place, value in self.model.items() if place[0] == db.index]
            assert db.expiring_count == sum(map(bool, expiring))
        assert self.keyspace.expired_count == len(self.gone)
        moments = [value[1] for value in self.model.values() if value[1]]
        assert self.keyspace.next_expiry_ms() == min(moments, default=None)


Expiring.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)
TestExpiring = Expiring.TestCase


def test_a_due_key_is_hidden_but_kept_while_changes_are_refused() -> None:
    keyspace = Keyspace()
    keyspace.expiring = True
    keyspace.set_time(1_000)
    db = keyspace.databases[0]
    db.set(b"k", b"v")
    db.set_expiry(b"k", 2_000)
    keyspace.set_time(2_000)
    keyspace.may_delete = False
    assert db.get(b"k") is None
    assert keyspace.expire_due(10) == 0
    assert len(db) == 1
    keyspace.may_delete = True
    assert db.get(b"k") is None
    assert len(db) == 0


def test_a_start_expires_no_key_by_the_clock() -> None:
    keyspace = Keyspace()
    keyspace.set_time(5_000)
    db = keyspace.databases[0]
    db.set(b"k", b"v")
    db.set_expiry(b"k", 2_000)
    assert db.get(b"k") == b"v"
    assert keyspace.expire_due(10) == 0


def test_idle_time() -> None:
    keyspace = Keyspace()
    keyspace.set_time(10_000)
    db = keyspace.databases[0]
    db.set(b"k", b"v")
    db.make_stream(b"s", 1)
    keyspace.set_time(17_000)
    assert (db.idle_s(b"k"), db.idle_s(b"s")) == (7, 7)
    db.get(b"k")
    assert db.idle_s(b"k") == 7
    db.read(b"k")
    db.touch(b"s")
    assert (db.idle_s(b"k"), db.idle_s(b"s")) == (0, 0)
    keyspace.touching = False
    keyspace.set_time(20_000)
    db.read(b"k")
    assert db.idle_s(b"k") == 3


def test_a_renamed_key_keeps_its_time_of_use() -> None:
    keyspace = Keyspace()
    keyspace.set_time(10_000)
    db = keyspace.databases[0]
    db.set(b"k", b"v")
    db.make_stream(b"s", 1)
    keyspace.set_time(14_000)
    db.rename(b"k", db, b"k2")
    db.rename(b"s", db, b"s2")
    assert (db.idle_s(b"k2"), db.idle_s(b"s2")) == (4, 4)

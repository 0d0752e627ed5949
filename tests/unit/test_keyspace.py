"""A captured point in time is what was there when it began, whatever happens meanwhile; and a
step of it is short."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
from tests.support.captures import each, whole

from millstream.storage.capture.capture import Capture
from millstream.storage.keyspace.database import Database
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.swapdb import swap_databases
from millstream.storage.streams.stream import Stream


def finish(capture: Capture) -> dict[tuple[int, bytes], Any]:
    found: dict[tuple[int, bytes], Any] = {}
    for one in whole(capture, 16):
        assert (one.db, one.key) not in found, "a key was captured twice"
        found[one.db, one.key] = one.meta["value"] if one.kind == "string" else one.kind
    return found


@pytest.mark.parametrize("steps", [0, 1, 100])
def test_a_key_set_again_after_a_flush_is_captured_as_it_was(steps: int) -> None:
    keyspace = Keyspace()
    db = keyspace.databases[0]
    db.set(b"k", b"old")
    capture = Capture(keyspace)
    db.clear()
    db.set(b"k", b"new")
    db.set(b"other", b"new")
    assert finish(capture) == {(0, b"k"): b"old"}
    assert db.get(b"k") == b"new"


@pytest.mark.parametrize("seed", range(30))
def test_a_capture_is_the_point_in_time(seed: int) -> None:
    chance = random.Random(seed)
    keyspace = Keyspace(2)
    found: dict[tuple[int, bytes], Any] = {}

    def change() -> None:
        db = chance.choice(keyspace.databases)
        key = b"%d" % chance.randrange(150)
        kind = chance.randrange(20)
        if kind < 8:
            db.set(key, b"%d" % chance.randrange(1000))
        elif kind < 12:
            db.delete(key)
        elif kind < 19:
            if db.get(key) is None:
                db.make_stream(key, keyspace.next_incarnation(1))
            elif isinstance(db.get(key), Stream):
                db.writable_stream(key)
        elif chance.random() < 0.1:
            db.clear()

    for _ in range(300):
        change()
    for _ in range(3):
        expected = {
            (db.index, key): "stream" if isinstance(db.get(key), Stream) else db.get(key)
            for db in keyspace.databases
            for key in db.keys()  # noqa: SIM118
        }
        found = {}
        capture = Capture(keyspace)
        while (step := capture.step(5)) is not None:
            for one in each(step):
                assert (one.db, one.key) not in found, "a key was captured twice"
                found[one.db, one.key] = one.meta["value"] if one.kind == "string" else one.kind
            for _ in range(20):
                change()
        capture.close()
        assert found == expected


def many_keys() -> tuple[Keyspace, Database]:
    """A keyspace, and its one database with 10,000 keys."""
    keyspace = Keyspace(1)
    db = keyspace.databases[0]
    for number in range(10_000):
        db.set(b"%d" % number, b"v")
    return keyspace, db


def test_a_step_is_short_after_many_deletions() -> None:
    keyspace, db = many_keys()
    capture = Capture(keyspace)
    for number in range(10_000):
        db.delete(b"%d" % number)
    assert len(finish(capture)) == 10_000


def test_a_step_examines_few_keys_even_after_all_were_returned() -> None:
    keyspace, db = many_keys()
    capture = Capture(keyspace)
    for number in range(10_000):
        db.set(b"%d" % number, b"w")
    taken = 0
    while (step := capture.step(64)) is not None:
        taken += len(step)
        assert capture.looked_at <= 64
        capture.looked_at = 0
    assert taken == 10_000


class Walked:
    """A keyspace in which keys come, go, expire and are flushed at random."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.keyspace = Keyspace(2)
        self.keyspace.expiring = True
        self.now_ms = 1000
        self.keyspace.set_time(self.now_ms)

    def change(self) -> None:
        chance = self.chance
        db, other = chance.sample(self.keyspace.databases, 2)
        key, new_key = b"%d" % chance.randrange(300), b"%d" % chance.randrange(300)
        kind = chance.randrange(1000)
        if kind < 400:
            db.get(key)
            db.set(key, b"v")
        elif kind < 700:
            db.delete(key)
        elif kind < 800 and db.get(key) is not None:
            db.set_expiry(key, self.now_ms + chance.randrange(1, 50))
        elif kind < 900 and db.get(key) is not None:
            db.rename(key, chance.choice([db, other]), new_key)
        elif kind < 990:
            self.now_ms += 1
            self.keyspace.set_time(self.now_ms)
            if chance.random() < 0.5:
                self.keyspace.expire_due(100)
        elif kind < 995:
            db.clear()
        else:
            swap_databases(self.keyspace, 0, 1)


@pytest.mark.parametrize("seed", range(30))
def test_a_walk_finds_the_keys_that_were_there_when_it_began(seed: int) -> None:
    walked = Walked(seed)
    for _ in range(400):
        walked.change()
    for _ in range(5):
        db = walked.chance.choice(walked.keyspace.databases)
        expected = sorted(key for key in list(db.keys()) if db.get(key) is not None)
        walk = db.walk()
        found: list[bytes] = []
        while (step := walk.step(walked.chance.choice([1, 500, 5000]))) is not None:
            found += step
            if walked.chance.random() < 0.1:
                for _ in range(20):
                    walked.change()
        walk.close()
        assert sorted(found) == expected


def test_a_step_of_a_walk_examines_few_keys_even_after_all_left() -> None:
    _, db = many_keys()
    walk = db.walk()
    for number in range(10_000):
        db.delete(b"%d" % number)
    found: list[bytes] = []
    while (step := walk.step(64)) is not None:
        assert len(step) <= 64
        found += step
    assert len(set(found)) == len(found) == 10_000


@pytest.mark.parametrize("how", ["delete", "clear", "set"])
def test_a_stream_ends_with_its_key(how: str) -> None:
    keyspace = Keyspace(1)
    db = keyspace.databases[0]
    db.make_stream(b"k", 1)
    stream = db.stream(b"k")
    held = sys.getrefcount(stream)
    if how == "delete":
        db.delete(b"k")
    elif how == "clear":
        db.clear()
    else:
        db.set(b"k", b"string")
    assert sys.getrefcount(stream) == held - 2, "neither the table nor what it saw last has it"

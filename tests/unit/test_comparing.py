"""Comparing two sides: what is a difference, and what one side does not have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support import rdb_files
from tests.support.payloads import Consumer, Entry, Group, Stream
from tests.support.rdb_files import file, key, string

from millstream.server.moving.compared_sides import FileSide, open_side
from millstream.server.moving.comparing import Comparison, Result
from millstream.server.moving.key_states import ConsumerTimes, Filters, NotComparable, Place, State

T_MS = 1_700_000_000_000
LATER_MS = 1 << 45
Write = Callable[..., FileSide]


def sample() -> Stream:
    entries = [Entry((5, i), [b"a", b"%d" % i]) for i in range(1, 8)]
    group = Group(
        b"g", (5, 4), 4, consumers=[Consumer(b"ann", [(5, 1), (5, 4)]), Consumer(b"bob", [])]
    )
    group.pending = [((5, 1), T_MS, 1), ((5, 4), T_MS, 2)]
    return Stream([entries], (9, 0), groups=[group])


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(name: str, *parts: bytes) -> FileSide:
        path = tmp_path / name
        path.write_bytes(file(*parts))
        return FileSide(path)

    return make


def compared(a: FileSide, b: FileSide, *, as_replica: bool = False) -> Result:
    return Comparison(a, b, as_replica=as_replica).run(Filters(), 0)


def difference(write: Write, other: Stream, *, as_replica: bool = False, kind: int = 21) -> str:
    """The sentence about the one key of two files, "" if they are equal."""
    a = write("a.rdb", key(b"s", sample().body(21)))
    b = write("b.rdb", key(b"s", other.body(kind)))
    return compared(a, b, as_replica=as_replica).different.get((0, b"s"), "")


def test_the_first_difference_of_a_stream_is_named(write: Write) -> None:
    assert difference(write, sample()) == ""
    other = sample()
    other.nodes[0][3].words = [b"a", b"other"]
    assert difference(write, other) == "entry 5-4 has other fields"
    other = sample()
    other.nodes[0].pop()
    assert "entry 5-7 is only in " in difference(write, other)
    changes: list[tuple[str, Callable[[Stream], None]]] = [
        ("last ID: 9-0 and 10-0", lambda s: setattr(s, "last_id", (10, 0))),
        ("entries added: 7 and 8", lambda s: setattr(s, "entries_added", 8)),
        ("greatest deleted ID", lambda s: setattr(s, "max_deleted", (4, 0))),
        ('group "h" is only in', lambda s: s.groups.append(Group(b"h"))),
        ("offset: 5-4 and 5-5", lambda s: setattr(s.groups[0], "last_id", (5, 5))),
        ("entries read: 4 and 5", lambda s: setattr(s.groups[0], "entries_read", 5)),
        ('consumer "eve" is in one', lambda s: s.groups[0].consumers.append(Consumer(b"eve", []))),
        ("seen time", lambda s: setattr(s.groups[0].consumers[0], "seen_ms", 5)),
        ("active time", lambda s: setattr(s.groups[0].consumers[0], "active_ms", 5)),
        (
            "pending entry 5-4: time",
            lambda s: s.groups[0].pending.__setitem__(1, ((5, 4), T_MS, 3)),
        ),
    ]
    for words, change in changes:
        other = sample()
        change(other)
        assert words in difference(write, other)


def test_a_replica_may_differ_in_what_is_not_replicated(write: Write) -> None:
    other = sample()
    other.groups[0].consumers = [dataclasses.replace(other.groups[0].consumers[0], seen_ms=1)]
    other.groups[0].pending[1] = ((5, 4), T_MS - 5, 1)
    assert difference(write, other)
    assert difference(write, other, as_replica=True) == ""
    other.groups[0].pending[1] = ((5, 4), T_MS, 3)
    assert "greater count in the replica" in difference(write, other, as_replica=True)


def test_a_redis_gives_a_consumer_to_entries_without_an_owner(write: Write) -> None:
    a = write("a.rdb", key(b"s", sample().body(21)))
    b = write("b.rdb", key(b"s", sample().body(21)))
    ours, theirs = a.states(Filters())[0, b"s"], b.states(Filters())[0, b"s"]
    rows, consumers = ours.groups[b"g"].pending, ours.groups[b"g"].consumers
    free = [row._replace(owner=None) for row in rows]
    ours.groups[b"g"] = ours.groups[b"g"]._replace(pending=free)
    owned = [row._replace(owner=b"unowned") for row in rows]
    theirs.groups[b"g"] = theirs.groups[b"g"]._replace(
        pending=owned, consumers=[*consumers, b"unowned"]
    )
    a.states = lambda filters: {(0, b"s"): ours}  # type: ignore[method-assign]
    b.states = lambda filters: {(0, b"s"): theirs}  # type: ignore[method-assign]
    assert compared(a, b, as_replica=True).different == {}
    assert compared(a, b).different
    theirs.groups[b"g"] = theirs.groups[b"g"]._replace(pending=rows)
    assert compared(a, b, as_replica=True).different


def test_a_consumer_with_an_empty_name_is_not_compared(write: Write) -> None:
    """An import leaves it out; a running Redis shows it."""
    a = write("a.rdb", key(b"s", sample().body(21)))
    state = a.states(Filters())[0, b"s"]
    state.groups[b"g"].consumers.insert(0, b"")
    state.consumers[b"g", b""] = ConsumerTimes(T_MS, T_MS)
    b = write("b.rdb", key(b"s", sample().body(21)))
    a.states = lambda filters: {(0, b"s"): state}  # type: ignore[method-assign]
    for sides in ((a, b), (b, a)):
        result = compared(*sides)
        assert result.different == {}
        assert result.not_compared == {"consumers with an empty name"}
    assert compared(a, a).not_compared == set()


def test_an_import_that_leaves_a_consumer_out_is_not_just_equal(write: Write) -> None:
    """The file has a consumer with an empty name, the other side does not."""
    nameless = sample()
    nameless.groups[0].consumers.append(Consumer(b"", []))
    a = write("a.rdb", key(b"s", nameless.body(21)))
    b = write("b.rdb", key(b"s", sample().body(21)))
    for sides in ((a, b), (b, a)):
        result = compared(*sides)
        assert (result.different, result.not_compared) == ({}, {"consumers with an empty name"})
    assert compared(a, a).not_compared == set()


def test_a_pattern_that_matches_no_key_is_named(write: Write) -> None:
    a, b = write("a.rdb", key(b"t", string(b"x"))), write("b.rdb", key(b"u", string(b"x")))
    filters = Filters(patterns=(b"[tu]", b"v\n*", b"u"))
    assert Comparison(a, b).run(filters, 0).notes == ["no key matches --key v\\n*"]


def test_fields_that_one_side_lacks_are_not_compared(write: Write) -> None:
    a = write("a.rdb", key(b"s", sample().body(21)))
    b = write("b.rdb", key(b"s", sample().body(15)))
    result = compared(a, b)
    assert result.different == {}
    assert result.not_compared == {
        "active times", "entries added", "entries read", "greatest deleted ID"
    }  # fmt: skip


def test_keys_strings_and_expiries_are_compared(write: Write) -> None:
    a = write(
        "a.rdb", key(b"t", string(b"x")), key(b"e", string(b"x"), LATER_MS), key(b"a", string(b""))
    )
    b = write("b.rdb", key(b"t", string(b"y")), key(b"e", string(b"x"), LATER_MS + 1))
    found = {name: words for (_, name), words in compared(a, b).different.items()}
    assert found[b"t"] == "the strings differ"
    assert found[b"e"] == f"expiry: {LATER_MS} and {LATER_MS + 1}"
    assert found[b"a"].startswith("only in ")
    assert Comparison(a, b).run(Filters(strings=False), 0).different == {}
    assert Comparison(a, b).run(Filters(patterns=(b"t*",)), 0).keys == 1
    assert Comparison(a, b).run(Filters(databases=frozenset((1,))), 0).keys == 0


def test_a_key_that_has_expired_is_not_there(write: Write) -> None:
    stream = sample().body(21)
    a = write("a.rdb", key(b"t", string(b"x"), T_MS), key(b"s", stream, T_MS), key(b"u", stream))
    b = write("b.rdb", key(b"t", string(b"y")), key(b"u", stream))
    result = compared(a, b)
    assert list(result.different) == [(0, b"t")]
    assert "only in " in result.different[0, b"t"]
    assert result.keys == 2


def test_old_sources_do_not_replicate_entries_read(write: Write) -> None:
    other = sample()
    other.groups[0].entries_read = -1
    a = write("a.rdb", key(b"s", sample().body(21)))
    b = write("b.rdb", key(b"s", other.body(21)))
    assert compared(a, b, as_replica=True).different
    a.replicates_entries_read = False
    result = compared(a, b, as_replica=True)
    assert (result.different, result.not_compared) == ({}, {"entries read"})
    assert compared(a, b).different


class Changing:
    """A server whose key becomes equal after some looks."""

    name = "changing"
    is_live = True
    replicates_entries_read = True

    def __init__(self, side: FileSide, looks: int) -> None:
        self._side = side
        self._looks = looks

    def states(self, filters: Filters) -> dict[Place, State]:
        return {place: State(value=b"other") for place in self._side.states(filters)}

    def state(self, place: Place) -> State | None:
        self._looks -= 1
        return State(value=b"other") if self._looks > 0 else self._side.state(place)

    entries = FileSide.entries


@pytest.mark.parametrize(("looks", "is_equal"), [(3, True), (99, False)])
def test_a_difference_counts_if_it_stays(write: Write, looks: int, is_equal: bool) -> None:
    side = write("a.rdb", key(b"t", string(b"x")))
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    comparison = Comparison(side, Changing(side, looks))
    result = comparison.run(Filters(), 2.0, sleep, lambda: now)
    assert (result.different == {}) == is_equal


def test_a_key_that_both_have_deleted_meanwhile_is_no_difference(write: Write) -> None:
    side = write("a.rdb", key(b"t", string(b"x")))
    one, other = Changing(side, 0), write("b.rdb")
    one.state = lambda place: None  # type: ignore[method-assign]
    assert (0, b"t") in Comparison(one, other).run(Filters(), 0).different
    assert Comparison(one, other).run(Filters(), 2.0, lambda seconds: None).different == {}


def test_what_cannot_be_read_is_not_comparable(write: Write, tmp_path: Path) -> None:
    with pytest.raises(NotComparable, match="cannot be read"):
        open_side(str(tmp_path / "absent"))
    with pytest.raises(NotComparable, match="not a data directory"):
        open_side(str(tmp_path))
    (tmp_path / "bad.rdb").write_bytes(rdb_files.file(key(b"t", string(b"x")))[:-9])
    with pytest.raises(NotComparable, match="is damaged at offset"):
        open_side(str(tmp_path / "bad.rdb")).states(Filters())

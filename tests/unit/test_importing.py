"""Files of Redis become a base: what is kept, left out, adjusted and refused.

The files are built from the specification of the format (tests/support/rdb_files). The conversion
runs in this process, and the base is read as a server reads it.
"""

from __future__ import annotations

import struct
import tracemalloc
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import payloads, rdb_files
from tests.support.effort import examples
from tests.support.fakedisk import FakeDisk
from tests.support.payloads import Consumer, Entry, Group, Stream
from tests.support.rdb_files import database, file, key, string
from tests.support.storage_access import check_stream

from millstream.commands.runtime.effects import apply_effects
from millstream.server.durability.directory_loader import Loader, LoadReport
from millstream.storage.blocks.block import Block
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.dump.base_making import (
    BaseMaker,
    ImportFailure,
    Wanted,
    keys_of,
    shown_key,
)
from millstream.storage.dump.digests import entry_form, new_digest
from millstream.storage.dump.rdb_bytes import crc64
from millstream.storage.dump.rdb_file import RdbFile
from millstream.storage.dump.reader import Reader
from millstream.storage.dump.seen_keys import SeenKeys
from millstream.storage.files.manifest import Manifest, base_name
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.files.snapshot_writer import Identity, SnapshotWriter
from millstream.storage.keyspace.keyspace import Keyspace

NOW_MS = 1_700_000_000_000
DIRECTORY = bytes(range(16))
ALL = Wanted()


class Converted:
    """The base that was made of some bytes, its keys, and what was found."""

    def __init__(self, *files: bytes, wanted: Wanted = ALL, piece_bytes: int = 1 << 20) -> None:
        self.disk = FakeDisk()
        output = self.disk.create(base_name(1))
        identity = Identity(bytes(16), NOW_MS, 1, DIRECTORY, b"salt")
        self.streams: list[dict[str, Any]] = []
        writer = SnapshotWriter(output, identity, compressed=False)
        maker = BaseMaker(writer, wanted, NOW_MS, 7, self.streams.append, with_digests=True)
        for i, data in enumerate(files):
            maker.add_file(RdbFile(reader_of(data, piece_bytes)), f"dump{i}.rdb")
        maker.finish()
        self.findings = maker.findings
        self.keyspace = loaded(self.disk)

    def stream(self, name: bytes, number: int = 0) -> Any:
        stream = self.keyspace.databases[number].stream(name)
        check_stream(stream)
        return stream

    @property
    def keys(self) -> list[tuple[int, bytes]]:
        tables = enumerate(db.table for db in self.keyspace.databases)
        return sorted((number, name) for number, table in tables for name in table)


def reader_of(data: bytes, piece_bytes: int) -> Reader:
    """A reader that gets the bytes in pieces."""
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        piece = data[at : at + min(size, piece_bytes)]
        at += len(piece)
        return piece

    return Reader(b"", 0, 0, read, len(data))


def loaded(disk: FakeDisk) -> Keyspace:
    """The keys of the base on this disk."""
    keyspace = Keyspace()
    keyspace.set_time(NOW_MS)
    stored = StoredKeyspace(keyspace)
    loader = Loader(disk, stored, lambda frame: apply_effects(keyspace, frame), Block)
    manifest = Manifest(base_name(1), (), 2, DIRECTORY)
    for _ in loader.read(manifest, LoadReport()):
        pass
    return keyspace


def failure(*files: bytes, wanted: Wanted = ALL) -> str:
    with pytest.raises(ImportFailure) as caught:
        Converted(*files, wanted=wanted)
    return str(caught.value)


def sample() -> Stream:
    entries = [Entry((5, i), [b"a", b"%d" % i, b"b", b"x" * i]) for i in range(1, 8)]
    entries[2].deleted = True
    group = Group(b"g", (5, 4), 4, consumers=[Consumer(b"ann", [(5, 1)]), Consumer(b"", [(5, 4)])])
    group.pending = [((5, 1), NOW_MS + 9, 1), ((5, 4), NOW_MS - 5, 2**40)]
    return Stream([entries], (9, 0), (5, 3), 12, [group, Group(b"h")])


def long_stream(nodes: int = 400) -> Stream:
    """A stream of many blocks, with a group."""
    value = b"v" * 20
    made = [
        [Entry((node, i), [b"n", b"%d" % node, b"v", value]) for i in range(3)]
        for node in range(1, nodes + 1)
    ]
    group = Group(b"g", (7, 1), 20, consumers=[Consumer(b"ann", [(7, 1)])])
    group.pending = [((7, 1), NOW_MS - 1, 3)]
    return Stream(made, (nodes, 5), groups=[group])


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize("kind", [15, 19, 21, 26, 27])
@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_streams_of_every_type_are_kept(kind: int, piece_bytes: int) -> None:
    source = sample()
    if kind >= 26:
        source.producers = [(b"p", [(b"m1", (5, 1))])]
        source.iids_added = 1
    data = file(
        rdb_files.aux(b"redis-ver", b"8.6.3"), database(2), key(b"s", source.body(kind)),
        key(b"t", string(b"text"), NOW_MS + 5000), key(b"n", b"\0\xc1\x39\x30"),
    )  # fmt: skip
    made = Converted(data, piece_bytes=piece_bytes)
    assert made.keys == [(2, b"n"), (2, b"s"), (2, b"t")]
    stream = made.stream(b"s", 2)
    assert stream.range() == [(*entry.id, entry.words) for entry in source.live]
    assert (stream.last_id, stream.length) == ((9, 0), 6)
    assert stream.entries_added == (12 if kind >= 19 else 6)
    group = stream.groups[b"g"]
    assert group.entries_read == (4 if kind >= 19 else -1)
    assert [row[:5] for row in group.pending.rows()] == [
        (5, 1, b"ann", NOW_MS, 1), (5, 4, b"", NOW_MS - 5, 2**40)
    ]  # fmt: skip
    assert list(group.pending.consumers) == [b"ann"]
    assert stream.groups[b"h"].entries_read == 0
    database_2 = made.keyspace.databases[2]
    assert (database_2.table[b"t"], database_2.table[b"n"]) == (b"text", b"12345")
    assert database_2.expiries == {b"t": NOW_MS + 5000}
    assert made.findings.adjusted.delivery_times == 1
    assert made.findings.adjusted.consumers_without_name == 1
    totals = made.findings.totals
    assert (totals.streams, totals.strings, totals.entries) == (1, 2, 6)
    assert (totals.groups, totals.consumers, totals.pending) == (2, 1, 2)
    if kind >= 26:
        assert stream.idempotence.find(b"p", b"m1", 6) == (5, 1)


def test_a_long_stream_is_written_while_it_is_read() -> None:
    source = long_stream()
    made = Converted(file(key(b"before", sample().body(19)), key(b"long", source.body(21))))
    stream = made.stream(b"long")
    assert stream.range() == [(*entry.id, entry.words) for entry in source.live]
    assert stream.last_id == (400, 5)
    assert [row[:5] for row in stream.groups[b"g"].pending.rows()] == [
        (7, 1, b"ann", NOW_MS - 1, 3)
    ]
    assert stream.block_count > 64
    assert made.stream(b"before").length == 6


def test_the_entries_of_a_base_can_be_appended_to() -> None:
    stream = Converted(file(key(b"s", sample().body(21)))).stream(b"s")
    stream.append_entry(10, 0, [b"a", b"1"])
    check_stream(stream)
    assert stream.last_id == (10, 0)


def test_digests_are_those_of_the_page() -> None:
    for source in (sample(), long_stream()):
        [facts] = Converted(file(key(b"s", source.body(21)))).streams
        digest = new_digest()
        for entry in source.live:
            digest.update(struct.pack(">QQI", *entry.id, len(entry.words) // 2))
            for word in entry.words:
                digest.update(struct.pack(">I", len(word)) + word)
            assert entry_form(*entry.id, entry.words).startswith(struct.pack(">QQ", *entry.id))
        assert facts["entries_digest"] == digest.hexdigest()
    digest = new_digest()
    digest.update(struct.pack(">I1sQQqI", 1, b"g", 5, 4, 4, 1) + struct.pack(">I3s", 3, b"ann"))
    digest.update(struct.pack(">QQQI3sqq", 2, 5, 1, 3, b"ann", NOW_MS, 1))
    digest.update(struct.pack(">QQIqq", 5, 4, 0xFFFFFFFF, NOW_MS - 5, 2**40))
    digest.update(struct.pack(">I1sQQqIQ", 1, b"h", 0, 0, 0, 0, 0))
    [facts] = Converted(file(key(b"s", sample().body(21)))).streams
    assert facts["groups_digest"] == digest.hexdigest()


def test_a_backup_of_a_primary_keeps_its_position() -> None:
    facts = [(b"repl-id", b"a" * 40), (b"repl-offset", b"1234"), (b"repl-stream-db", b"2")]
    made = Converted(file(*(rdb_files.aux(*fact) for fact in facts)))
    meta = SnapshotReader(made.disk.read(base_name(1))).summary.global_meta
    assert meta["source"] == {"replid": "a" * 40, "offset": 1234, "database": 2}
    assert StoredKeyspace(made.keyspace).global_meta()["source"] == meta["source"]
    # The commands after it fit no data that is less, or more, than that of the file.
    for wanted, files in (
        (Wanted(patterns=(b"*",)), 1), (Wanted(databases={0: 1}), 1), (Wanted(strings=False), 1),
        (Wanted(), 2),
    ):  # fmt: skip
        rdb = file(*(rdb_files.aux(*fact) for fact in facts))
        part = Converted(*[rdb] * files, wanted=wanted)
        assert "source" not in StoredKeyspace(part.keyspace).global_meta()
    made.keyspace.begin_again()
    assert "source" not in StoredKeyspace(made.keyspace).global_meta()


# ---------------------------------------------------------------- what is left out


def test_other_types_are_counted_and_named() -> None:
    for others, version, magic in (
        (rdb_files.OTHERS, 6, b"REDIS"), (rdb_files.OTHERS, 81, b"VALKEY"),
        (rdb_files.REDIS_OTHERS, 15, b"REDIS"), (rdb_files.VALKEY_OTHERS, 80, b"VALKEY"),
    ):  # fmt: skip
        for what, kind, value in others:
            names = [b"k%d" % i for i in range(7)]
            head = rdb_files.TEMPLATE if kind == 32 else b""
            keys = [key(name, bytes((kind,)) + value) for name in names]
            data = file(head, *keys, key(b"s", string(b"x")), version=version, magic=magic)
            made = Converted(data)
            assert made.keys == [(0, b"s")]
            left_out = made.findings.left_out
            assert list(left_out) == [what], kind
            assert left_out[what].keys == 7
            assert left_out[what].bytes == 7 * len(value)
            assert left_out[what].names == [f"k{i}" for i in range(5)]
            assert "--other skip" in failure(data, wanted=Wanted(may_leave_out=False))


def test_what_is_between_keys_is_passed_over() -> None:
    library = b"\xf5" + payloads.text(b"#!lua name=mylib\nreturn 1")
    parts = [
        rdb_files.module_data(), library, b"\xfb" + b"\5\1", b"\xf4" + b"\1\2\3",
        rdb_files.metadata(1), b"\xf8" + payloads.length(500), key(b"a", string(b"1")),
        b"\xf9\x07", key(b"b", string(b"2")), b"\xfd" + struct.pack("<I", NOW_MS // 1000 + 9),
        key(b"c", string(b"3")),
    ]  # fmt: skip
    made = Converted(file(*parts, version=13))
    assert made.keys == [(0, b"a"), (0, b"b"), (0, b"c")]
    assert made.keyspace.databases[0].expiries == {b"c": (NOW_MS // 1000 + 9) * 1000}
    left_out = made.findings.left_out
    assert {what: one.names for what, one in left_out.items()} == {
        "module data": ["ReJSON-RL"], "functions": ["mylib"], "key metadata": ["BCDE"]
    }  # fmt: skip


def test_keys_that_are_due_are_left_out() -> None:
    made = Converted(file(
        key(b"now", sample().body(19), NOW_MS), key(b"past", string(b"x"), NOW_MS - 1),
        key(b"later", string(b"x"), NOW_MS + 1),
    ))  # fmt: skip
    assert made.keys == [(0, b"later")]
    assert made.findings.expired == 2


def test_filters_choose_keys_and_databases() -> None:
    data = file(
        key(b"orders:1", sample().body(19)), key(b"other", sample().body(19)), database(3),
        key(b"orders:2", sample().body(19)), key(b"text", string(b"x")),
    )  # fmt: skip
    assert Converted(data, wanted=Wanted(patterns=(b"orders:*", b"text"))).keys == [
        (0, b"orders:1"), (3, b"orders:2"), (3, b"text")
    ]  # fmt: skip
    assert Converted(data, wanted=Wanted(databases={3: 5})).keys == [(5, b"orders:2"), (5, b"text")]
    made = Converted(data, wanted=Wanted(strings=False))
    assert made.keys == [(0, b"orders:1"), (0, b"other"), (3, b"orders:2")]
    assert made.findings.left_out["string"].names == ["text"]


def test_names_that_are_no_text_are_escaped() -> None:
    made = Converted(
        file(key(b"\xff\\x", sample().body(19)), key("é\\".encode(), sample().body(19)))
    )
    assert [facts["key"] for facts in made.streams] == ["\\xff\\\\x", "é\\"]


# ---------------------------------------------------------------- damage


def test_a_cut_file_is_refused_and_salvaged() -> None:
    first, second = key(b"first", sample().body(19)), key(b"orders", long_stream().body(19))
    whole = file(first, second, key(b"last", string(b"x")))
    start = 9 + len(first)
    for cut in (start + 20, start + len(second) - 9, start + len(second) // 2):
        words = failure(whole[:cut])
        assert "dump0.rdb is damaged at offset " in words
        assert ', in key "orders" of database 0: ' in words
        assert "; 1 key before it is whole; nothing was written" in words
        assert words.endswith("; nothing was written; --salvage keeps them")
        made = Converted(whole[:cut], wanted=Wanted(salvage=True))
        assert made.keys == [(0, b"first")]
        assert len(made.findings.lost) == 1
    assert Converted(whole[:-8], wanted=Wanted(salvage=True)).keys == [
        (0, b"first"), (0, b"last"), (0, b"orders")
    ]  # fmt: skip


@pytest.mark.parametrize("break_at", ["node", "group", "string", "counter", "window"])
def test_a_value_that_does_not_load_is_left_out_alone(break_at: str) -> None:
    source = long_stream()
    kind = 27 if break_at == "window" else 19
    if break_at == "node":
        source.nodes[399] = [Entry((2**50, 0), [b"n", b"1"]), Entry((1, 0), [b"n", b"1"])]
    elif break_at == "group":
        source.groups.append(source.groups[0])
    elif break_at == "counter":
        source.entries_added = 1
    elif break_at == "window":
        source.producers = [(b"p", [(b"m", (1, 0)), (b"m", (2, 0))])]
    body = source.body(kind)
    if break_at == "string":
        body = b"\0" + payloads.compressed(b"\xff\xff\xff", 200)
    data = file(
        key(b"first", sample().body(19)), key(b"bad", body), key(b"last", sample().body(19))
    )
    words = failure(data)
    assert ', in key "bad" of database 0: ' in words
    assert words.endswith(
        "1 key before it is whole; nothing was written; --salvage keeps the other keys"
    )
    # The checksum of a damaged file is wrong, too: that is no second loss.
    made = Converted(data[:-8] + bytes((*range(8),)), wanted=Wanted(salvage=True))
    assert made.keys == [(0, b"first"), (0, b"last")]
    assert made.stream(b"last").length == 6
    assert len(made.findings.lost) == 1


def test_patterns_that_match_no_key_are_named() -> None:
    data = file(key(b"orders", string(b"x")), key(b"list", b"\x01\x01\x01a"))
    found = Converted(data, wanted=Wanted(patterns=(b"o*", b"l*", b"order", b"O*"))).findings
    assert found.notes == ["no key matches --key order", "no key matches --key O*"]


def test_a_wrong_checksum_is_refused_if_there_is_one() -> None:
    parts = key(b"s", string(b"x"))
    assert "its checksum is wrong, although all values load" in failure(file(parts, checksum=5))
    made = Converted(file(parts, checksum=5), wanted=Wanted(salvage=True))
    assert made.keys == [(0, b"s")]
    assert "checksum" in made.findings.lost[0]
    assert Converted(file(parts, checksum=0)).keys == [(0, b"s")]
    assert Converted(file(parts, version=4)).keys == [(0, b"s")]


@pytest.mark.parametrize("part", [b"\x63\1kx", b"\xf6\0", b"\xf1\0", b"\x22\1k", b"\6\1k\0"])
def test_what_is_not_known_ends_the_import(part: bytes) -> None:
    ver, first = rdb_files.aux(b"redis-ver", b"9.9.9"), key(b"s", string(b"x"))
    words = failure(file(ver, first, part, version=99))
    offset = 9 + len(ver) + len(first)
    assert (
        f"{part[0]} at offset {offset} is not known; Redis 9.9.9 wrote it, with version 99" in words
    )
    assert Converted(file(ver, first, part), wanted=Wanted(salvage=True)).keys == [(0, b"s")]


def test_parts_of_valkey_are_not_those_of_redis() -> None:
    for part in (rdb_files.metadata(1), rdb_files.TEMPLATE, b"\x18\1kx", sample().body(26)):
        assert "is not known" in failure(file(part, version=80, magic=b"VALKEY"))
    assert "is required" in failure(file(rdb_files.metadata(0), version=13))


def test_other_files_are_refused() -> None:
    for data, words in (
        (b"", "too short"), (b"*2\r\n$6\r\nSELECT", "does not begin with REDIS"),
        (b"REDIS00x1\xff", "does not begin"), (b"REDIS0000\xff", "does not begin"),
        (b"VALKEY079\xff", "does not begin"), (b"VKCS00000000", "compressed as a whole"),
    ):  # fmt: skip
        assert words in failure(data)


def test_a_database_that_does_not_exist_ends_the_import() -> None:
    words = failure(file(database(16), key(b"s", string(b"x"))))
    assert "database 16" in words
    assert "`databases`" in words
    wanted = Wanted(databases={16: 0})
    data = file(database(16), key(b"s", string(b"x")))
    assert Converted(data, wanted=wanted).keys == [(0, b"s")]


def test_a_key_may_come_once() -> None:
    data = file(key(b"s", string(b"x")))
    assert 'key "s" of database 0, which was imported before' in failure(data, data)
    assert Converted(data, file(database(1), key(b"s", string(b"x")))).keys == [
        (0, b"s"),
        (1, b"s"),
    ]
    twice = file(key(b"s", string(b"x")), key(b"t", string(b"y")), key(b"s", string(b"z")))
    assert "imported before; nothing was written; --salvage keeps the first one" in failure(twice)
    salvaged = Converted(twice, wanted=Wanted(salvage=True))
    assert salvaged.keys == [(0, b"s"), (0, b"t")]
    assert len(salvaged.findings.lost) == 1


COLLIDING = st.integers(0, 9).map(lambda number: number << 40)


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40) | COLLIDING))
def test_seen_keys_are_a_set(numbers: list[int]) -> None:
    seen, model = SeenKeys(), set[int]()
    for number in [*numbers, *range(2000 * (len(numbers) % 2))]:
        known = (number or 1) in model
        model.add(number or 1)
        assert seen.add(number) != known
    assert len(seen) == len(model)


def test_a_key_that_was_seen_takes_less_than_40_bytes() -> None:
    random = Random(5)
    numbers = [random.getrandbits(64) for _ in range(45_000)]
    tracemalloc.start()
    try:
        seen = SeenKeys()
        for number in numbers:
            seen.add(number)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(numbers)
    finally:
        tracemalloc.stop()


def test_bytes_after_the_end_are_refused() -> None:
    assert "bytes follow its end" in failure(file(key(b"s", string(b"x"))) + b"x")


SEED_FILE = file(
    key(b"s", sample().body(21)), key(b"t", string(b"text"), NOW_MS + 9),
    *(key(b"k%d" % kind, bytes((kind,)) + value) for _, kind, value in rdb_files.OTHERS),
)  # fmt: skip


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_file_may_have_any_bytes(data: st.DataObject) -> None:
    body = bytearray(SEED_FILE[:-8])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(9, len(body) - 1))
        change = data.draw(st.sampled_from(["byte", "cut", "huge", "repeat"]))
        if change == "byte":
            body[at] = data.draw(st.integers(0, 255))
        elif change == "cut":
            del body[at : at + data.draw(st.integers(1, 9))]
        elif change == "huge":
            body[at : at + 1] = struct.pack(">BQ", 0x81, data.draw(st.integers(0, 2**64 - 1)))
        else:
            body[at:at] = body[at : at + 30]
    whole = bytes(body) + struct.pack("<Q", crc64(bytes(body)))
    for salvage in (False, True):
        try:
            made = Converted(whole, wanted=Wanted(salvage=salvage))
        except ImportFailure:
            continue
        for number, name in made.keys:
            if name in made.keyspace.databases[number].table:
                assert made.findings.totals.streams + made.findings.totals.strings == len(made.keys)


@pytest.mark.parametrize(
    "key", [b"a", "\u00e9".encode(), b"a\\b", b"\xff", b"a\\\xff", b"\\xff", b"\xe9\\x41\\\\", b""]
)
def test_a_key_can_be_found_by_its_name_in_a_report(key: bytes) -> None:
    found = keys_of(shown_key(key))
    assert key in found
    assert all(shown_key(one) == shown_key(key) for one in found)

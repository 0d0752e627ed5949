"""Files of an AOF: their manifest, their requests, and the keys after a replay.

Requests are written by hand; tests/wire/test_import has the files of a real Redis.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import rdb_files
from tests.support.effort import examples
from tests.support.payloads import Consumer, Entry, Group, Stream
from tests.support.rdb_files import key, string
from tests.support.resp import encode_command
from tests.unit.test_importing import NOW_MS, reader_of

from millstream.commands.engine.idempotent_messages import name_of
from millstream.errors import PayloadError
from millstream.quoted_words import split_words
from millstream.server.moving.aof_replay import Replay, ReplayFailure
from millstream.server.moving.source_files import NoSource, aof_files
from millstream.storage.dump.aof_file import AofFile, AofReader, begins_aof, parse_manifest
from millstream.storage.dump.reader import CutOffError
from millstream.storage.streams.stream import Stream as LiveStream


def requests(*lines: str) -> bytes:
    return b"".join(encode_command(line.split()) for line in lines)


def replayed(*files: bytes, salvage: bool = False, piece_bytes: int = 1 << 20) -> Replay:
    replay = Replay(NOW_MS, salvage, databases_count=16)
    for number, data in enumerate(files):
        is_last = number == len(files) - 1
        replay.add(reader_of(data, piece_bytes), f"{number}.aof", is_last=is_last)
    return replay


def failure(*files: bytes) -> str:
    with pytest.raises(ReplayFailure) as caught:
        replayed(*files)
    return str(caught.value)


def values(replay: Replay) -> dict[tuple[int, bytes], object]:
    """The keys: a string, or the IDs of a stream."""
    return {
        (head.database, head.name): [entry[:2] for entry in value.range()]
        if isinstance(value, LiveStream)
        else value
        for head, value in replay.values()
    }


def left_out(replay: Replay) -> list[tuple[str, int, bytes]]:
    return [(passed.what, head.database, head.name) for head, passed in replay.others()]


# ---------------------------------------------------------------- the manifest


def test_a_manifest_names_its_files_in_order() -> None:
    text = (
        b"# made by Redis\nfile a.1.incr.aof seq 1 type h\nfile a.2.base.rdb seq 2 type b\n"
        b'file "a \\"b\\".2.incr.aof" seq 2 type i startoffset 17\n'
        b"file a.3.incr.aof seq 3 type i startoffset 30 endoffset 99\n"
    )
    assert parse_manifest(text) == [
        AofFile("a.2.base.rdb", 2, "b"), AofFile('a "b".2.incr.aof', 2, "i"),
        AofFile("a.3.incr.aof", 3, "i"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        b"", b"file a seq 1 type h\n", b"file a seq 1\n", b"file a seq x type i\n", b"\n",
        b"file a seq 0 type i\n", b"file a seq 1 type z\n", b"file ../a seq 1 type i\n",
        b'file "a seq 1 type i\n', b"file a seq 1 type b\nfile b seq 2 type b\n",
        b"file a seq 2 type i\nfile b seq 2 type i\n", b"file a seq 1 type i\n\nfile b",
        b"\xff\n", b"file .. seq 1 type i\n",
    ],
)  # fmt: skip
def test_a_manifest_that_redis_refuses_is_refused(text: bytes) -> None:
    with pytest.raises(PayloadError):
        parse_manifest(text)


def test_files_of_a_manifest_have_to_exist(tmp_path: Path) -> None:
    with pytest.raises(NoSource, match="without the manifest"):
        aof_files(tmp_path)
    (tmp_path / "a.manifest").write_bytes(b"file a.1.incr.aof seq 1 type i\n")
    with pytest.raises(NoSource, match=r"names a\.1\.incr\.aof, which is not there"):
        aof_files(tmp_path)
    (tmp_path / "a.1.incr.aof").touch()
    assert aof_files(tmp_path) == [tmp_path / "a.1.incr.aof"]
    (tmp_path / "b.manifest").touch()
    with pytest.raises(NoSource, match=r"a\.manifest, b\.manifest"):
        aof_files(tmp_path)
    (tmp_path / "a.manifest").unlink()
    with pytest.raises(NoSource, match=r"b\.manifest is damaged"):
        aof_files(tmp_path)


# ---------------------------------------------------------------- requests

WORDS = [[b"SET", b"a", b"\r\n*1\r\n"], [b"PING"], [b"APPEND", b"", b"x" * 100]]
ANNOTATION = b"#TS:1700000000\r\n"
FILE = ANNOTATION + b"".join(encode_command(words) + ANNOTATION for words in WORDS)


def read_all(data: bytes, piece_bytes: int) -> list[list[bytes]]:
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        start, at = at, at + min(size, piece_bytes)
        return data[start:at]

    reader, found = AofReader(read), []
    while (words := reader.next()) is not None:
        found.append(words)
    assert reader.read_bytes == len(data)
    return found


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 1000])
def test_requests_are_read_in_any_pieces(piece_bytes: int) -> None:
    assert read_all(FILE, piece_bytes) == WORDS
    assert read_all(b"", piece_bytes) == []


def test_a_file_may_end_at_any_byte() -> None:
    ends = {0, len(FILE)}
    for cut in range(len(FILE)):
        try:
            found = read_all(FILE[:cut], 7)
            ends.add(cut)
        except CutOffError:
            continue
        assert WORDS[: len(found)] == found
    assert len(ends) == 8  # before and after each request and each annotation


@given(st.integers(0, len(FILE) - 1), st.integers(0, 255), st.integers(1, 9))
@settings(max_examples=examples(200), deadline=None)
def test_a_file_of_requests_may_have_any_bytes(at: int, byte: int, piece_bytes: int) -> None:
    data = FILE[:at] + bytes((byte,)) + FILE[at + 1 :]
    try:
        read_all(data, piece_bytes)
    except PayloadError:
        return
    read_all(data, 1000)


def test_a_length_is_not_believed_before_its_bytes() -> None:
    for data in (b"*2\r\n$3\r\nSET\r\n$1000000000\r\nx", b"*1000000\r\n$1\r\na\r\n"):
        with pytest.raises(CutOffError):
            read_all(data, 1000)
    for data in (
        b"*1\r\n$1073741825\r\n",
        b"*1048577\r\n",
        b"*0\r\n",
        b"\r\n",
        b"*-1\r\n",
        b"SET a b\r\n",
    ):
        with pytest.raises(PayloadError, match=r"place of|no words"):
            read_all(data, 1000)


def test_an_aof_is_recognized() -> None:
    plain, base = rdb_files.file(), rdb_files.file(rdb_files.aux(b"aof-base", b"1"))
    old = rdb_files.file(rdb_files.aux(b"aof-preamble", b"1"), key(b"s", string(b"x")))
    no = rdb_files.file(rdb_files.aux(b"aof-base", b"0"))
    for data, is_aof in (
        (FILE, True), (b"*", True), (base, True), (old, True), (plain, False), (no, False),
        (b"", False), (b"REDIS00", False), (b"other", False),
    ):  # fmt: skip
        reader = reader_of(data, 3)
        assert begins_aof(reader) == is_aof, data
        assert reader.offset == 0
        assert data.startswith(reader.some(1 << 20))


# ---------------------------------------------------------------- a replay


def test_requests_change_what_the_base_has() -> None:
    group = Group(b"g", (1, 1), 1, consumers=[Consumer(b"ann", [(1, 1)])])
    group.pending = [((1, 1), NOW_MS - 5, 1)]
    source = Stream([[Entry((1, 1), [b"a", b"b"]), Entry((2, 1), [b"a", b"c"])]], (2, 1))
    source.groups = [group]
    base = rdb_files.file(
        rdb_files.aux(b"aof-base", b"1"), key(b"s", source.body(21)),
        key(b"due", string(b"x"), NOW_MS - 1), key(b"l", b"\1\1\1a"),
    )  # fmt: skip
    for piece_bytes in (5, 1 << 20):
        replay = replayed(
            base,
            ANNOTATION + requests("SELECT 0", "XADD s MAXLEN = 2 3-1 a d", "APPEND due y"),
            requests(
                "SELECT 0", "MULTI", f"XCLAIM s g bob 0 2-1 TIME {NOW_MS - 3} RETRYCOUNT 4 FORCE"
                " JUSTID LASTID 2-1", "XACK s g 1-1", "EXEC", "SELECT 2", "SET t v",
            ),
            piece_bytes=piece_bytes,
        )  # fmt: skip
        assert values(replay) == {
            (0, b"s"): [(2, 1), (3, 1)], (0, b"due"): b"xy", (2, b"t"): b"v"
        }  # fmt: skip
        [stream] = [value for _, value in replay.values() if isinstance(value, LiveStream)]
        loaded = stream.groups[b"g"]
        assert (loaded.offset_ms, loaded.offset_seq) == (2, 1)
        assert [row[:5] for row in loaded.pending.rows()] == [(2, 1, b"bob", NOW_MS - 3, 4)]
        assert left_out(replay) == [("list", 0, b"l")]
        assert [file.requests for file in replay.files] == [0, 3, 7]
        assert len(replay.notes) == 1
        assert "no times of consumers" in replay.notes[0]


def test_keys_of_other_types_are_named_by_type() -> None:
    replay = replayed(
        requests(
            "SELECT 0", "RPUSH l a b", "HSET h f v", "SADD s m", "ZADD z 1 m", "RENAME l l2",
            "COPY h h2", "COPY h h DB 3", "SET x 1", "SADD gone m", "DEL gone", "SETBIT bits 5 1",
            "APPEND bits z", "JSON.SET j $ 1", "SORT l2 STORE x", "SADD again m", "SET again v",
            "SELECT 7", "LPUSH far a", "FLUSHDB", "LPUSH near a", "SWAPDB 7 8", "MOVE s 9",
            "FUNCTION LOAD #!lua_name=lib", "XADD new 5-1 a b", "RENAME new h",
        )
    )  # fmt: skip
    assert values(replay) == {(0, b"again"): b"v", (7, b"h"): [(5, 1)]}
    assert left_out(replay) == [
        ("hash", 0, b"h"), ("set", 0, b"s"), ("zset", 0, b"z"), ("list", 0, b"l2"),
        ("hash", 0, b"h2"), ("hash", 3, b"h"), ("string", 0, b"bits"), ("module JSON", 0, b"j"),
        ("list", 0, b"x"), ("list", 8, b"near"),
    ]  # fmt: skip
    assert [passed.what for passed in replay.passed] == ["functions"]


def test_requests_that_were_not_run_are_in_the_notes() -> None:
    first = requests("SET k 1", "XNEW k 2", "XNEW absent 2", "RPUSH l a", "PFCOUNT k", "SET o 1")
    replay = replayed(first, requests("SELECT 0", "ANOTHER o", "RPUSH l b", "RENAME k m"))
    assert values(replay) == {}
    assert left_out(replay) == [("list", 0, b"l"), ("string", 0, b"m"), ("string", 0, b"o")]
    assert [note for note in replay.notes if "requests that" in note] == [
        "0.aof: requests that this version does not know: xnew (2)",
        "0.aof: requests that were not run: rpush (1), pfcount (1)",
        "1.aof: requests that this version does not know: another (1)",
        "1.aof: requests that were not run: rpush (1), rename (1)",
    ]


def test_arrays_and_moved_slots_are_named() -> None:
    replay = replayed(
        requests(
            "ARSET a 0 x", "ARINSERT b x", "RPUSH l x", "SUNIONSTORE l s1 s2", "SET gone x",
            "SADD s x", "BITOP AND s x y", "RESTORE-ASKING gone 0 \1\1\1a REPLACE",
        )
    )  # fmt: skip
    assert values(replay) == {}
    assert left_out(replay) == [
        ("array", 0, b"a"), ("array", 0, b"b"), ("set", 0, b"l"), ("string", 0, b"s"),
        ("list", 0, b"gone"),
    ]  # fmt: skip
    assert "has 1 words" in failure(requests("RESTORE-ASKING"))


def test_only_the_last_file_may_end_early() -> None:
    whole, more = requests("SET a 1", "MULTI", "SET a 2", "EXEC"), requests("SET b 1")
    complete = {requests("SET a 1"): b"1", whole: b"2"}
    for cut in range(1, len(whole)):
        replay = replayed(whole[:cut])
        expected = b"1" if cut >= len(requests("SET a 1")) else None
        assert values(replay).get((0, b"a")) == expected
        if whole[:cut] in complete:
            assert "ends" not in replay.notes[0]
            continue
        assert "it was read up to offset" in replay.notes[0]
        assert "and it is not the last file" in failure(whole[:cut], more)
    assert values(replayed(whole, more)) == {(0, b"a"): b"2", (0, b"b"): b"1"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("EXEC", "EXEC without MULTI"),
        ("XSETID s 1-0", 'XSETID of the key "s" failed'),
        ("EVAL return 0", "replicates scripts"),
        ("NEWCOMMAND s", "not known"),
        ("SELECT 99999", "database 99999"),
    ],
)
def test_a_request_that_fails_ends_the_replay(line: str, words: str) -> None:
    before = requests("XADD s 5-1 a b")
    text = failure(before + requests(line))
    assert f"0.aof cannot be replayed at offset {len(before)}: " in text
    assert words in text


def test_a_replay_may_leave_out_what_fails() -> None:
    data = requests("XADD s 5-1 a b", "XSETID s 1-0", "XADD s 6-1 a b")
    replay = replayed(data, salvage=True)
    assert values(replay) == {(0, b"s"): [(5, 1), (6, 1)]}
    assert len(replay.lost) == 1


def test_a_damaged_base_is_refused() -> None:
    mark = rdb_files.aux(b"aof-base", b"1")
    whole = rdb_files.file(mark, key(b"s", string(b"text")))
    assert "damaged at offset" in failure(whole[:-12])
    assert "checksum" in failure(rdb_files.file(mark, checksum=5))
    twice = rdb_files.file(mark, key(b"s", string(b"x")), key(b"s", string(b"x")))
    assert "appears twice" in failure(twice)


def test_messages_of_producers_keep_their_names() -> None:
    """Redis 8.6 sends the ID of a new message, and `*` for a repeat."""
    replay = replayed(
        requests(
            f"XADD s IDMP p m1 {NOW_MS}-1 a b", f"XADD s IDMPAUTO p {NOW_MS}-2 a c",
            "XADD s IDMP p m1 * a b", "XADD s IDMP p other * a b",
            f"XADD s IDMP p m1 {NOW_MS}-3 a b", "XADD s * a b",
        )
    )  # fmt: skip
    assert values(replay) == {(0, b"s"): [(NOW_MS, 1), (NOW_MS, 2), (NOW_MS, 3)]}
    [stream] = [value for _, value in replay.values() if isinstance(value, LiveStream)]
    assert stream.idempotence.find(b"p", b"m1", NOW_MS) == (NOW_MS, 3)
    assert stream.idempotence.find(b"p", name_of([b"a", b"c"]), NOW_MS) == (NOW_MS, 2)


def test_a_consumer_with_an_empty_name_is_another_one() -> None:
    lines = [b"XADD s 1-1 a b", b"XGROUP CREATE s g 0", b'XGROUP CREATECONSUMER s g ""']
    lines += [b'XCLAIM s g "" 0 1-1 TIME 5 RETRYCOUNT 2 FORCE JUSTID LASTID 1-1']
    replay = replayed(b"".join(encode_command(split_words(line)) for line in lines))
    [stream] = [value for _, value in replay.values() if isinstance(value, LiveStream)]
    assert [row[:5] for row in stream.groups[b"g"].pending.rows()] == [(1, 1, b"unowned", 5, 2)]
    more = encode_command(split_words(b'XGROUP DELCONSUMER s g ""'))
    replay.add(reader_of(more, 9), "more", is_last=True)
    assert not stream.groups[b"g"].pending.count

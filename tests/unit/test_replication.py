"""Replication without I/O: histories, records, the backlog, the replica's end of a link."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.server.replication import history
from millstream.server.replication.backlog import Backlog
from millstream.server.replication.link_connection import why_lost
from millstream.server.replication.link_protocol import (
    Continued,
    Event,
    FullSync,
    IsRedis,
    LinkProtocol,
    Opening,
    Refused,
    Rewind,
)
from millstream.server.replication.records import (
    HEAD_BYTES,
    PIECE_BYTES,
    Beat,
    Decoder,
    LinkError,
    Record,
    RecordKind,
    encode,
    encode_beat,
    encode_frame,
    encode_message,
    encode_piece,
    parse_beat,
    parse_message,
    parse_piece,
)
from millstream.server.replication.redis_opening import Commands, Continues
from millstream.storage.keyspace.keyspace import Keyspace, Line, Source

# Histories


class NaiveServer:
    """The frames of a server as a list, each with the line to which it belongs."""

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.keyspace = Keyspace()

    def follow(self, other: NaiveServer, count: int) -> None:
        """Lose everything that the other one does not have, and take its first frames."""
        self.frames = other.frames[:count]
        self.keyspace = Keyspace()
        for seq, name in enumerate(self.frames, 1):
            if seq == 1 or self.frames[seq - 2] != name:
                self.keyspace.begin_history(name, seq)

    def write(self, name: str, count: int) -> None:
        if count:
            self.keyspace.begin_history(name, len(self.frames) + 1)
            self.frames += [name] * count

    @property
    def lines(self) -> tuple[Line, ...]:
        return self.keyspace.histories


@given(st.randoms(use_true_random=False))
def test_the_last_common_frame_is_that_of_a_naive_comparison(chance: random.Random) -> None:
    servers = [NaiveServer() for _ in range(3)]
    for step in range(chance.randint(0, 12)):
        one, other = chance.sample(servers, 2)
        if chance.random() < 0.5:
            one.write(f"{step:040x}", chance.randint(0, 4))
        else:
            one.follow(other, chance.randint(0, len(other.frames)))
    one, other = servers[:2]
    same = [left == right for left, right in zip(one.frames, other.frames, strict=False)]
    expected = [*same, False].index(False)
    found = history.last_common(one.lines, len(one.frames), other.lines, len(other.frames))
    assert (found or 0) == expected
    if found is None:
        assert not {name for name, _ in one.lines} & {name for name, _ in other.lines}


@given(
    st.lists(st.integers(1, 2**62), unique=True, max_size=16).map(sorted),
)
def test_histories_survive_their_encoding(firsts: list[int]) -> None:
    lines = tuple((f"{number:040x}", first) for number, first in enumerate(firsts))
    assert history.parse(history.encode(lines)) == lines


@pytest.mark.parametrize(
    "word",
    [
        b"x",
        b"a" * 40,
        b"a" * 40 + b":0",
        b"a" * 39 + b":1",
        b"a" * 40 + b":1,",
        b"a" * 40 + b":2," + b"b" * 40 + b":2",
        b",".join(b"%040x:%d" % (number, number + 1) for number in range(17)),
    ],
)
def test_other_words_are_no_histories(word: bytes) -> None:
    with pytest.raises(ValueError, match="histor"):
        history.parse(word)


# Records


RECORDS = [
    encode_frame(7, b"*1\r\n$8\r\nFLUSHALL\r\n"),
    encode_beat(Beat(1_700_000_000_000, 7, 300)),
    encode_piece(0, b"first"),
    encode_piece(5, b"second"),
    encode(0, RecordKind.END, b""),
    encode_frame(8, b"x" * 1000),
]


def decoded(pieces: Iterator[bytes]) -> list[Record]:
    decoder = Decoder(1 << 20)
    found = []
    for piece in pieces:
        decoder.feed(piece)
        while (record := decoder.next()) is not None:
            found.append(record)
    return found


@pytest.mark.parametrize("size", [1, 2, 7, 20, 21, 1000, 5000])
def test_records_are_found_however_they_are_cut(size: int) -> None:
    data = b"".join(RECORDS)
    found = decoded(data[at : at + size] for at in range(0, len(data), size))
    assert [encode(*record) for record in found] == RECORDS
    assert parse_beat(found[1].payload) == Beat(1_700_000_000_000, 7, 300)
    assert [parse_piece(found[n].payload) for n in (2, 3)] == [(0, b"first"), (5, b"second")]


def test_no_flipped_bit_is_read_as_data() -> None:
    data = b"".join(RECORDS)
    whole = [encode(*record) for record in decoded(iter([data]))]
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        decoder = Decoder(1 << 20)
        decoder.feed(bytes(flipped))
        found = []
        try:
            while (record := decoder.next()) is not None:
                found.append(encode(*record))
        except LinkError:
            pass
        assert len(found) < len(whole)
        assert found == whole[: len(found)]


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_a_message_survives_its_encoding(channel: bytes, message: bytes) -> None:
    (record,) = decoded(iter([encode_message(channel, message)]))
    assert (record.kind, parse_message(record.payload)) == (RecordKind.MESSAGE, (channel, message))


def test_a_message_that_is_too_long_for_a_record_is_not_sent() -> None:
    assert encode_message(b"c", bytes(PIECE_BYTES)) == b""
    with pytest.raises(LinkError):
        parse_message(b"\xff\0\0\0c")


def test_a_record_of_any_length_is_not_awaited() -> None:
    decoder = Decoder(100)
    decoder.feed(encode_frame(1, b"x" * 101)[:HEAD_BYTES])
    with pytest.raises(LinkError, match="101 bytes"):
        decoder.next()


# The backlog


def test_the_backlog_drops_the_oldest_records_above_its_limit() -> None:
    backlog = Backlog(100, 5)
    for number in range(5, 15):
        backlog.append(b"x" * (30 - HEAD_BYTES))
        if number % 2:  # whether it was sent before it is dropped
            assert backlog.take(number, number, 1000) == [encode_frame(number, b"x" * 10)]
    assert (backlog.first_seq, backlog.next_seq, backlog.size_bytes) == (12, 15, 90)
    assert [backlog.holds(seq) for seq in (11, 12, 14, 15)] == [False, True, True, False]
    assert len(backlog.take(12, 13, 1000)) == 2
    assert len(backlog.take(12, 20, 60)) == 2
    assert len(backlog.take(12, 20, 1)) == 1
    assert backlog.take(13, 14, 1000) == [encode_frame(seq, b"x" * 10) for seq in (13, 14)]


def test_the_backlog_keeps_a_record_larger_than_its_limit() -> None:
    backlog = Backlog(100, 1)
    backlog.append(b"x" * 10)
    backlog.append(b"x" * 300)
    assert (backlog.first_seq, backlog.next_seq) == (2, 3)


# The replica's end of a link


def opening(**fields: object) -> Opening:
    given: dict[str, object] = {
        "user": "", "password": "", "port": 7001, "announced_ip": "", "version": "1.0",
        "databases": 16, "histories": (("a" * 40, 1),), "next_seq": 8, **fields,
    }  # fmt: skip
    return Opening(**given)  # type: ignore[arg-type]


def sent_by(link: LinkProtocol) -> bytes:
    data = bytes(link.output)
    link.output.clear()
    return data


def events(link: LinkProtocol, data: bytes) -> list[Event]:
    return list(link.feed(data))


def test_a_replica_sends_one_handshake_step_per_reply() -> None:
    link = LinkProtocol(opening(user="u", password="p", announced_ip="10.0.0.9"), 1 << 20)
    assert sent_by(link) == b"*1\r\n$4\r\nPING\r\n"
    assert events(link, b"+PONG\r\n") == []
    assert sent_by(link) == b"*3\r\n$4\r\nAUTH\r\n$1\r\nu\r\n$1\r\np\r\n"
    assert events(link, b"+OK\r\n") == []
    introduction = sent_by(link)
    for word in (b"listening-port", b"7001", b"ip-address", b"10.0.0.9", b"a" * 40 + b":1"):
        assert word in introduction
    assert events(link, b"+OK\r\n") == []
    assert sent_by(link) == b"*3\r\n$5\r\nPSYNC\r\n$40\r\n" + b"a" * 40 + b"\r\n$1\r\n8\r\n"


def asked(**fields: object) -> LinkProtocol:
    """A link that waits for the answer to PSYNC."""
    link = LinkProtocol(opening(**fields), 1 << 20)
    assert events(link, b"+PONG\r\n+OK\r\n") == []
    sent_by(link)
    return link


def test_a_primary_that_does_not_answer_may_have_no_tls() -> None:
    reason = why_lost(TimeoutError(), uses_tls=True, unanswered=True)
    assert reason.endswith("for 10 seconds; a port without TLS needs tls-replication no")
    plain = why_lost(TimeoutError(), uses_tls=False, unanswered=True)
    assert plain == "it has not answered for 10 seconds"


@pytest.mark.parametrize(
    "answer",
    [
        "WRONGPASS invalid username-password pair or user is disabled.",
        "ERR AUTH called without any password configured. Is that right?",
    ],
)
def test_an_error_of_auth_names_the_directives(answer: str) -> None:
    link = LinkProtocol(opening(password="wrong"), 1 << 20)
    (refused,) = events(link, f"+PONG\r\n-{answer}\r\n".encode())
    assert refused == Refused(f"{answer[:-1]}: check masteruser and masterauth", False)


def test_a_missing_password_is_named() -> None:
    refused = Refused("NOAUTH the primary needs a password: set masterauth", False)
    link = LinkProtocol(opening(password=""), 1 << 20)
    assert events(link, b"-NOAUTH Authentication required.\r\n") == [refused]
    assert events(LinkProtocol(opening(password="secret"), 1 << 20), b"-NOAUTH no\r\n") == []


ANSWERS: list[tuple[bytes, Event]] = [
    (b"+CONTINUE " + b"b" * 40, Continued()),
    (b"+FULLRESYNC " + b"b" * 40 + b" 12 3456 -1 20", FullSync(12, 3456, -1, 20)),
    (b"-REWIND " + b"b" * 40 + b" 6", Rewind(6)),
    (b"-NOMASTERLINK later", Refused("NOMASTERLINK later", True)),
    (b"-ERR never", Refused("ERR never", False)),
]


@pytest.mark.parametrize(("answer", "event"), ANSWERS)
def test_the_answer_to_psync_is_an_event(answer: bytes, event: Event) -> None:
    assert events(asked(), answer + b"\r\n") == [event]
    link = asked()
    found = [one for byte in answer + b"\r\n" for one in events(link, bytes([byte]))]
    assert found == [event]


def test_records_may_follow_the_answer_in_the_same_piece() -> None:
    data = b"\r\n\r\n+CONTINUE " + b"b" * 40 + b"\r\n" + RECORDS[0] + RECORDS[1]
    for cut in range(1, 60):
        link = asked()
        found = events(link, data[:cut]) + events(link, data[cut:])
        assert found[0] == Continued(), cut
        assert [encode(*one) for one in found[1:] if isinstance(one, Record)] == RECORDS[:2], cut


@pytest.mark.parametrize(
    "answer",
    [
        b"+FULLRESYNC " + b"b" * 40 + b" 12\r\n",  # of Redis
        b"+FULLRESYNC b x y z u\r\n",
        b"+FULLRESYNC b 5 0 -1 9\r\n",
        b"$5\r\nhello\r\n",
        b"x" * 5000,
    ],
)
def test_another_answer_ends_the_link(answer: bytes) -> None:
    with pytest.raises(LinkError):
        events(asked(), answer)


def test_a_redis_as_a_primary_is_asked_in_its_own_words() -> None:
    """It ignores what it does not know. The reply to INFO arrives in two parts."""
    link = LinkProtocol(opening(source=Source("f" * 40, 41, 2)), 1 << 20)
    error = b"-ERR Unrecognized REPLCONF option: version\r\n"
    assert events(link, b"+PONG\r\n" + error + b"+OK\r\n+OK\r\n" + error) == []
    assert sent_by(link).endswith(b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n")
    assert events(link, b"$32\r\n# Server\r\nredis_ver") == []
    assert events(link, b"sion:7.0.15\r\n\r\n") == [IsRedis("redis", "7.0.15")]
    assert b"PSYNC\r\n$40\r\n" + b"f" * 40 + b"\r\n$2\r\n42\r\n" in sent_by(link)
    assert events(link, b"+CONTINUE\r\n*1\r\n") == [Continues(""), Commands(b"*1\r\n")]
    link = LinkProtocol(opening(), 1 << 20)
    assert events(link, b"+PONG\r\n" + error + b"+OK\r\n" + b"-NOPERM x\r\n" * 3) == [
        IsRedis("redis", "")
    ]
    assert sent_by(link).endswith(b"PSYNC\r\n$1\r\n?\r\n$2\r\n-1\r\n")
    assert events(link, b"-NOPERM no psync\r\n") == [
        Refused("NOPERM no psync: masteruser needs +psync +replconf +ping", False)
    ]


def test_a_member_of_a_shard_follows_no_redis() -> None:
    """Its primary had this address once."""
    link = LinkProtocol(opening(node="a" * 40, primary="b" * 40, term=3), 1 << 20)
    refused = "ERR the server at this address is not a member of a shard"
    error = b"-ERR Unrecognized REPLCONF option: version\r\n"
    assert events(link, b"+PONG\r\n" + error) == [Refused(refused, False)]


def test_an_ack_has_the_offsets_applied_and_on_disk() -> None:
    link = asked()
    link.acknowledge(9, -1, 400)
    assert sent_by(link).split(b"\r\n")[2::2] == [
        b"REPLCONF", b"ACK", b"9", b"FACK", b"-1", b"OFFSET", b"400",
    ]  # fmt: skip

"""The replica's end of a link, without I/O: bytes in, bytes out, events.

A replica connects as a client, introduces itself, and asks for the frames after its last one. Each
answer of the primary is an event; after CONTINUE and FULLRESYNC the events are records.

The error of a Redis to the introduction shows that it is one. The replica then introduces itself
again, as a replica of Redis does, and the events are those of `redis_opening`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millstream.server.replication import history
from millstream.server.replication.link_words import (
    CAPABILITIES,
    KNOWS_SHARDS,
    KNOWS_UPSTREAM,
    RETRY,
    encode_request,
)
from millstream.server.replication.records import Decoder, LinkError, Record
from millstream.server.replication.redis_opening import (
    NO_POSITION,
    REDIS_CAPABILITIES,
    VERSION,
    RedisOpening,
    Refusal,
    SourceEvent,
)
from millstream.server.replication.upstream import parse_ids
from millstream.storage.keyspace.keyspace import Line, Source

_LINE_MAX = 4096
_INFO_MAX = 1 << 20
_UNKNOWN_OPTION = "Unrecognized REPLCONF option"  # the error of a Redis
_ACK = (
    b"*7\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$%d\r\n%b\r\n$4\r\nFACK\r\n$%d\r\n%b\r\n"
    b"$6\r\nOFFSET\r\n$%d\r\n%b\r\n"
)
_ACK_OF_TERM = _ACK.replace(b"*7", b"*9") + b"$4\r\nTERM\r\n$%d\r\n%b\r\n"
_UNABLE = ("-NOAUTH", "-NOPERM", "-MASTERDOWN", "-CLUSTERDOWN")  # to answer PING
_TEMPORARY = ("LOADING", "NOMASTERLINK", "MASTERDOWN", "BUSY", RETRY)


class Opening(NamedTuple):
    """A replica's description of itself. `announced_ip` "": the address that the primary sees.
    `is_promoted`: it does not ask for frames, but says that it is a primary now. `source`: the
    position of the data in the stream of a Redis. `node`: its ID as a member of a shard, `primary`
    that of the primary that it follows there, and its `term`; outside a shard there is no term.
    `start`: a number of its process, which no other one has."""

    user: str
    password: str
    port: int
    announced_ip: str
    version: str
    databases: int
    histories: tuple[Line, ...]
    next_seq: int
    takeover: tuple[bytes, ...] = ()  # TAKEOVER or TAKEOVER_FORCED: the other server takes over
    is_promoted: bool = False
    source: Source | None = None
    node: str = ""
    primary: str = ""
    term: int = 0
    start: str = ""


class Continued(NamedTuple):
    """The frames that were asked for follow."""


class FullSync(NamedTuple):
    """A base of `size_bytes` with the frames up to `seq` follows, then the frames after it.
    `common_seq` is the last frame that both servers have, -1 if they have no history in common;
    `frame_bytes` the size of all frames of the primary."""

    seq: int
    size_bytes: int
    common_seq: int
    frame_bytes: int


class Rewind(NamedTuple):
    """The replica's frames after `seq` belong to a line of history that ended there."""

    seq: int


class Refused(NamedTuple):
    """The primary's error. `is_temporary`: it may soon be over."""

    text: str
    is_temporary: bool


class Told(NamedTuple):
    """The IDs of the servers above this one (`upstream`)."""

    ids: tuple[str, ...]


class Noted(NamedTuple):
    """The old primary knows that this server was promoted."""


class IsRedis(NamedTuple):
    """The primary is a Redis or Valkey: its kind, and its version if it tells that."""

    kind: str
    version: str


Event = Continued | FullSync | Rewind | Refused | Told | Noted | Record | IsRedis | SourceEvent


class LinkProtocol:
    """One connection to a primary. `output` collects the bytes to send; the owner empties it.
    `is_redis`: the primary is a Redis or Valkey."""

    def __init__(self, opening: Opening, payload_max: int) -> None:
        self.output = bytearray()
        self.is_streaming = False
        self._opening = opening
        self._decoder = Decoder(payload_max, opening.term)
        self._text = b""
        self._requests = iter(self._introduction())
        self._asked = ""
        self._ended = False
        self._redis: RedisOpening | None = None  # after PSYNC to a Redis
        self.is_redis = False
        self._info = ""
        self._ask_next()

    @property
    def is_unanswered(self) -> bool:
        """True if the primary has answered nothing yet."""
        return self._asked == "PING"

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that these bytes complete. LinkError if they are not allowed."""
        if not self.is_streaming:
            self._text += data
            data = b""
            while not self.is_streaming and not self._ended:
                if self._asked == "INFO" and self._text.startswith(b"$") and not self._take_info():
                    return
                line, end, rest = self._text.partition(b"\r\n")
                if not end:
                    if len(line) > _LINE_MAX:
                        raise LinkError("an answer without an end")
                    return
                self._text = rest
                event = self._answered(line)
                if event is not None:
                    yield event
            data, self._text = self._text, b""
        if self._ended:
            return
        if self._redis is not None:
            yield from self._redis_events(data)
            return
        self._decoder.feed(data)
        while (record := self._decoder.next()) is not None:
            yield record

    def acknowledge(self, applied_seq: int, synced_seq: int, frame_bytes: int) -> None:
        """Tell the primary the last frame that is applied, the last one on the disk (-1: there is
        no journal), and the size of all frames up to the first of these."""
        applied, synced, size = b"%d" % applied_seq, b"%d" % synced_seq, b"%d" % frame_bytes
        numbers = len(applied), applied, len(synced), synced, len(size), size
        if self._opening.term:
            term = b"%d" % self._opening.term
            self.output += _ACK_OF_TERM % (*numbers, len(term), term)
        else:
            self.output += _ACK % numbers

    def acknowledge_bytes(self, applied: int, stored: int) -> None:
        """Tell a Redis how many bytes of its stream are applied, and how many are on the disk (-1:
        unknown)."""
        words = [b"REPLCONF", b"ACK", b"%d" % applied]
        if stored >= 0:
            words += [b"FACK", b"%d" % stored]
        self.output += encode_request(words)

    def say_alive(self) -> None:
        """A sign of life for a Redis that sends an RDB."""
        self.output += b"\n"

    def say(self, word: str, value: bytes = b"1") -> None:
        """Tell the primary that this server is "promoting" itself (b"0": no longer), or
        "promoted"."""
        self.output += encode_request([b"REPLCONF", word.encode(), value])

    def _introduction(self) -> Iterator[list[bytes]]:
        opening = self._opening
        yield [b"PING"]
        if opening.password:
            user = [opening.user.encode("utf-8", "surrogateescape")] if opening.user else []
            yield [b"AUTH", *user, opening.password.encode("utf-8", "surrogateescape")]
        announced = [b"ip-address", opening.announced_ip.encode()] if opening.announced_ip else []
        member = [
            b"node", opening.node.encode(), b"primary", opening.primary.encode(),
            b"term", b"%d" % opening.term, b"start", opening.start.encode(),
        ] if opening.term else []  # fmt: skip
        yield [
            b"REPLCONF", b"listening-port", b"%d" % opening.port, *announced,
            *(word for one in CAPABILITIES for word in (b"capa", one)),
            b"capa", KNOWS_UPSTREAM, b"capa", KNOWS_SHARDS,
            b"version", opening.version.encode(),
            b"databases", b"%d" % opening.databases,
            b"histories", history.encode(opening.histories), *member,
        ]  # fmt: skip
        if opening.is_promoted:
            yield [b"REPLCONF", b"promoted", b"%d" % (opening.next_seq - 1)]
            return
        newest = opening.histories[-1][0].encode() if opening.histories else b"?"
        yield [b"PSYNC", newest, b"%d" % opening.next_seq, *opening.takeover]

    # A Redis

    def _redis_introduction(self) -> Iterator[list[bytes]]:
        """The words of a replica of Redis. Errors to all but the last are ignored."""
        opening = self._opening
        announced = [b"ip-address", opening.announced_ip.encode()] if opening.announced_ip else []
        yield [b"REPLCONF", b"listening-port", b"%d" % opening.port, *announced]
        yield [b"REPLCONF", *(word for one in REDIS_CAPABILITIES for word in (b"capa", one))]
        yield [b"REPLCONF", b"version", VERSION]
        yield [b"INFO", b"server"]
        source = opening.source
        if source is None:
            yield [b"PSYNC", *NO_POSITION]
        else:
            yield [b"PSYNC", source.replid.encode(), b"%d" % (source.offset + 1)]

    def _take_info(self) -> bool:
        """Take the reply to INFO, which has many lines. False: it has not arrived completely."""
        head, end, rest = self._text.partition(b"\r\n")
        if not end:
            return False
        size = int(head[1:]) if head[1:].isdigit() else _INFO_MAX + 1
        if size > _INFO_MAX:
            raise LinkError(f"{head[:80]!r} as the answer to INFO")
        if len(rest) < size + 2:
            return False
        self._info = rest[:size].decode("utf-8", "replace")
        self._text = b"+OK\r\n" + rest[size + 2 :]
        return True

    def _begin_redis(self) -> Event:
        """PSYNC was sent: everything else is an answer to it."""
        self._redis = RedisOpening()
        self.is_streaming = True
        fields = dict(line.split(":", 1) for line in self._info.split("\r\n") if ":" in line)
        valkey = fields.get("valkey_version", "")
        kind = "valkey" if valkey or fields.get("server_name") == "valkey" else "redis"
        return IsRedis(kind, valkey or fields.get("redis_version", ""))

    def _redis_events(self, data: bytes) -> Iterator[Event]:
        assert self._redis is not None
        for event in self._redis.feed(data):
            if isinstance(event, Refusal):
                yield self._refused(event.text)
                return
            yield event

    def _ask_next(self) -> Event | None:
        words = next(self._requests, None)
        if words is None:
            self._ended = True
            return Noted()
        self._asked = words[0].decode()
        self.output += encode_request(words)
        if self.is_redis and self._asked == "PSYNC":
            return self._begin_redis()
        return None

    def _answered(self, line: bytes) -> Event | None:
        text = line.decode("utf-8", "replace")
        if self._asked == "PSYNC":
            return self._position(text)
        if self._asked == "PING" and text.startswith("-NOAUTH") and not self._opening.password:
            return self._refused("-NOAUTH the primary needs a password: set masterauth")
        is_unknown = self._asked == "REPLCONF" and _UNKNOWN_OPTION in text
        if is_unknown and self._opening.term:
            # The address is that of another server now: its data must not replace that of a shard.
            return self._refused("-ERR the server at this address is not a member of a shard")
        if is_unknown and not self.is_redis:
            self.is_redis = True
            self._requests = self._redis_introduction()
            return self._ask_next()
        if self.is_redis and not text.startswith(("-NOAUTH", "-LOADING", "-MASTERDOWN")):
            return self._ask_next()  # what it does not know does not matter
        # Without a password, a right or a link PING is refused, but the address is right.
        is_known = self._asked == "PING" and text.startswith(_UNABLE)
        if text.startswith("-") and not is_known:
            return self._refused(text)
        if not text.startswith(("+", "-")):
            raise LinkError(f"{text[:80]!r} as the answer to {self._asked}")
        told = text.removeprefix("+OK ") if self._asked == "REPLCONF" else text
        noted = self._ask_next()
        if noted is not None or told == text:
            return noted
        try:
            return Told(parse_ids(told))
        except ValueError as error:
            raise LinkError(str(error)) from None

    def _refused(self, text: str) -> Event:
        self._ended = True
        text = text.removeprefix("-")
        if self._asked == "REPLCONF" and "REPLCONF" in text:
            text = f"the primary is not a compatible millstream server ({text})"
        elif self._asked == "AUTH":
            text = f"{text.rstrip('.?')}: check masteruser and masterauth"
        elif text.startswith("NOPERM"):
            text = f"{text}: masteruser needs +psync +replconf +ping"
        return Refused(text, text.startswith(_TEMPORARY))

    def _position(self, text: str) -> Event | None:
        if not text:
            return None  # sent by a primary that prepares a full sync, to keep the link alive
        word, *rest = text.split()
        try:
            if word == "+CONTINUE" and len(rest) == 1:
                self.is_streaming = True
                return Continued()
            if word == "+FULLRESYNC" and len(rest) == 5:
                full = FullSync(*map(int, rest[1:]))
                if full.seq < 0 or full.size_bytes < 0 or (full.seq and not full.size_bytes):
                    raise ValueError("no such base")
                self.is_streaming = True
                return full
            if word == "-REWIND" and len(rest) == 2:
                self._ended = True
                return Rewind(int(rest[1]))
        except ValueError:
            raise LinkError(f"{text[:80]!r} as the answer to PSYNC") from None
        if text.startswith("-"):
            return self._refused(text)
        raise LinkError(
            f"{text[:80]!r} as the answer to PSYNC: the primary is not a millstream server"
        )

"""The cut-over from a Redis, with servers that fail at chosen requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import redis

from millstream.cli_error import CliError
from millstream.server.moving.live_following import Pair
from millstream.server.moving.promoting import Promotion
from millstream.tools.tool_connection import ToolConnection, ToolError, Unreachable

LOST = Unreachable("lost")
Fault = Exception | Callable[[], Any]


class Peer:
    """A server with the requests that a cut-over uses. `faults`: what happens at a request, in
    place of it, or before it if that returns nothing."""

    def __init__(self, name: str, **facts: str) -> None:
        self.name = name
        self.facts = facts
        self.directives = {"min-replicas-to-write": "0", "min-replicas-max-lag": "10"}
        self.streams: dict[bytes, int] = {}
        self.faults: dict[str, Fault] = {}
        self.requests: list[str] = []
        self.is_paused = False
        self.attempts = 0
        self.is_reachable = True

    def reconnect(self, within_s: float) -> None:
        self.attempts += 1
        if not self.is_reachable:
            raise Unreachable(f"{self.name}: no answer")

    def pipeline(self, requests: list[tuple[Any, ...]]) -> list[Any]:
        return [self._reply(words) for words in requests]

    def call(self, *words: Any) -> Any:
        reply = self._reply(words)
        if isinstance(reply, redis.RedisError):
            raise ToolError(f"{self.name}: {reply}")
        return reply

    def _reply(self, words: tuple[Any, ...]) -> Any:
        text = " ".join(w.decode() if isinstance(w, bytes) else str(w) for w in words)
        self.requests.append(text)
        for beginning, fault in list(self.faults.items()):
            if text.startswith(beginning):
                if isinstance(fault, BaseException):
                    raise fault
                if (reply := fault()) is not None:
                    return reply
        return self._answer(text, words)

    def _answer(self, text: str, words: tuple[Any, ...]) -> Any:
        if text == "INFO replication":
            return "".join(f"{name}:{value}\r\n" for name, value in self.facts.items()).encode()
        if text == "INFO keyspace":
            return b"db0:keys=1\r\n"
        if text.startswith("SCAN"):
            return [b"0", list(self.streams)]
        if text.startswith("XINFO"):
            if words[2] not in self.streams:
                return redis.ResponseError("no such key")
            return [b"length", self.streams[words[2]], b"last-generated-id", b"1-1"]
        if text.startswith("CONFIG GET"):
            return [w.encode() for pair in self.directives.items() for w in pair]
        if text.startswith("CONFIG SET"):
            self.directives[words[2]] = words[3]
        if text == "REPLICAOF NO ONE":
            self.facts["role"] = "master"
        if text.startswith("CLIENT"):
            self.is_paused = words[1] == "PAUSE" or (self.is_paused and words[1] != "UNPAUSE")
        return b"stream" if words[0] == "TYPE" else b"OK"

    @property
    def is_fenced(self) -> bool:
        wanted, lag = self.directives.values()
        return wanted == "1000000" and lag != "0"


class Two(Pair):
    def __init__(self) -> None:
        self.host, self.port = "old", 6379
        self.source: Any = Peer("old", role="master", master_repl_offset="100")
        self.target: Any = Peer(
            "new", role="slave", master_host="old", master_port="6379", master_link_status="up",
            master_kind="redis", source_spool_bytes="0", source_offset="100",
        )  # fmt: skip
        self.source.streams = self.target.streams = {b"s": 5}


@pytest.fixture
def two() -> Two:
    return Two()


def promote(two: Two) -> list[str]:
    promotion = Promotion(cast(Pair, two), 1, pauses=True)
    return [promotion.run(), *promotion.finish()]


def fails(two: Two, reason: str) -> str:
    with pytest.raises(CliError) as problem:
        promote(two)
    assert reason in problem.value.message
    return problem.value.message


def test_a_source_that_is_a_replica_is_refused(two: Two) -> None:
    two.source.facts |= {"role": "slave", "master_host": "top", "master_port": "1"}
    fails(two, "old is a replica of top:1")
    assert not two.source.is_paused
    assert two.target.facts["role"] == "slave"


@pytest.mark.parametrize("lag", ["0", "10"])
def test_the_fence_is_effective_and_can_be_undone(two: Two, lag: str) -> None:
    """With min-replicas-max-lag 0, a Redis ignores min-replicas-to-write."""
    two.source.directives["min-replicas-max-lag"] = lag
    before = dict(two.source.directives)
    lines = promote(two)
    assert two.source.is_fenced
    assert not two.source.is_paused
    undo = next(line for line in lines if "To undo that: " in line).partition("undo that: ")[2]
    for request in undo.split(", "):
        two.source.call(*request.split())
    assert two.source.directives == before


def test_a_fence_that_does_not_hold_ends_the_cut_over(two: Two) -> None:
    two.source.faults["CONFIG SET min-replicas-to-write 1000000"] = lambda: b"OK"
    fails(two, "does not keep the fence")
    assert two.target.facts["role"] == "slave"
    assert not two.source.is_paused


def test_a_write_before_the_fence_is_waited_for(two: Two) -> None:
    """It came after the comparison, when the pause was over."""

    def write() -> None:
        two.source.facts["master_repl_offset"] = "150"

    two.source.faults["CONFIG SET min-replicas-to-write 1000000"] = write
    fails(two, "has applied 100 of 150 bytes")
    assert not two.source.is_fenced
    two.target.facts["source_offset"] = "150"
    assert "up to offset 150" in promote(two)[0]


def test_a_stream_that_one_server_lacks_ends_the_cut_over(two: Two) -> None:
    for lacking, other in ((two.target, two.source), (two.source, two.target)):
        lacking.streams, other.streams = {b"s": 5}, {b"s": 5, b"t": 1}
        fails(two, f'"t" of database 0 differs: only {other.name} has it')
    two.target.streams, two.source.streams = {b"s": 5}, {b"s": 6}
    fails(two, "length 6 at old, 5 at new")
    assert not two.source.is_fenced


@pytest.mark.parametrize("is_promoted", [False, True])
def test_a_lost_answer_to_the_promotion_is_found_out(two: Two, is_promoted: bool) -> None:
    def lose() -> None:
        if is_promoted:
            two.target.facts["role"] = "master"
        raise LOST

    two.target.faults["REPLICAOF NO ONE"] = lose
    if is_promoted:
        promote(two)
        assert two.source.is_fenced
    else:
        fails(two, "still follows")
        assert "CLIENT KILL ID OK" in two.target.requests
        assert not two.source.is_fenced
    assert not two.source.is_paused


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("fault", ["silent", "killed", "info", "interrupted"])
def test_the_fence_stays_while_the_target_may_be_a_primary(two: Two, fault: str) -> None:
    """After the request, only role:slave shows that the source may serve writers again."""
    target = two.target

    def lose() -> None:
        if fault == "interrupted":
            interrupt()
        target.is_reachable = fault != "silent"
        target.facts["role"] = "master"
        if fault == "killed":
            target.faults["CLIENT KILL"] = lambda: redis.ResponseError("NOPERM")
        if fault in ("silent", "killed"):
            raise LOST
        target.faults["INFO"] = LOST

    target.faults["REPLICAOF NO ONE"] = lose
    message = fails(two, "it is not known if new is a primary, and old stays fenced")
    assert "With role:slave, send CONFIG SET min-replicas-to-write 0, CLIENT UNPAUSE" in message
    assert two.source.is_fenced


def test_a_fault_after_the_promotion_is_a_note(two: Two) -> None:
    two.source.faults |= {"CLIENT UNPAUSE": LOST, "SCAN 0 COUNT 500 TYPE": lambda: [b"0", []]}
    two.source.faults["SCAN 0 COUNT 500"] = LOST
    lines = promote(two)
    assert lines[0] == "new is the primary, with everything up to offset 100 of old"
    assert [line.partition(":")[0] for line in lines[-2:]] == ["note", "note"]
    assert "CLIENT UNPAUSE ends it" in lines[-2]


def test_forbidden_directives_leave_a_pause(two: Two) -> None:
    two.source.faults["CONFIG"] = lambda: redis.ResponseError("NOPERM")
    assert "To undo that: CLIENT UNPAUSE" in "\n".join(promote(two))
    assert two.source.is_paused
    assert "CLIENT KILL TYPE normal SKIPME yes" in two.source.requests


@pytest.mark.parametrize("url", ["redis://old:1", "redis://mover:own@old:1"])
def test_the_follower_gets_the_password_of_the_source(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the URL, or else of REDISCLI_AUTH."""
    requests: list[tuple[Any, ...]] = []

    def call(connection: ToolConnection, *words: Any) -> bytes:
        requests.append((connection.name, *words))
        return b"millstream_version:1\r\n" if "server" in words else b""

    monkeypatch.setenv("REDISCLI_AUTH", "shared")
    monkeypatch.setattr(ToolConnection, "_connect", lambda connection: None)
    monkeypatch.setattr(ToolConnection, "call", call)
    monkeypatch.setattr(ToolConnection, "pipeline", lambda connection, requests: [b"no"])
    assert Pair(url, "redis://new:2").begin()
    user, password = ("mover", "own") if "own" in url else ("", "shared")
    assert requests[2:] == [
        ("redis://new:2", "CONFIG", "SET", "masterauth", password),
        ("redis://new:2", "CONFIG", "SET", "masteruser", user),
        ("redis://new:2", "REPLICAOF", "old", 1),
    ]

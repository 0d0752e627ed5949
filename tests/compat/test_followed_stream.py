"""A stream that is followed with TMREAD CLOCK: unchanged programs write to it with XADD and read
it, while its followers learn up to which ID it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.support.server import Server
from tests.support.writers import EntryId, id_of

pytestmark = pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
WRITERS, ENTRIES = 4, 50


class Follower:
    """Remembers every (prev, next] that it was given."""

    def __init__(self, client: redis.Redis[Any]) -> None:
        self._client = client
        self.after = b"0.0"
        self.got: list[tuple[EntryId, bytes]] = []

    def read(self, count: int = 7) -> None:
        words = (count, "CLOCK", "STREAMS", "s", self.after)
        ((_, prev, following, rows, _, _),) = self._client.execute_command("TMREAD", *words)
        assert prev == self.after
        for entry_id, _, value in rows:
            assert id_of(prev) < id_of(entry_id) <= id_of(following)
            self.got.append((id_of(entry_id), value))
        self.after = following


@pytest.fixture
def clients(server: Server, protocol: int) -> Iterator[list[redis.Redis[Any]]]:
    made = [redis.Redis(port=server.port, protocol=protocol) for _ in range(WRITERS)]
    yield made
    for client in made:
        client.close()


def test_followers_miss_no_entry_of_xadd_clients(clients: list[redis.Redis[Any]]) -> None:
    follower = Follower(clients[0])
    clients[0].xgroup_create("s", "g", id="$", mkstream=True)
    for number in range(ENTRIES):
        client = clients[number % WRITERS]
        before = id_of(follower.after)
        options: dict[str, Any] = {"maxlen": 1000} if number % 3 else {}
        assert id_of(client.xadd("s", {"n": number}, **options)) > before
        if number % 5 == 0:
            client.pipeline().xadd("s", {"n": b"a"}).xadd("s", {"n": b"b"}).execute()
        if number % 4 == 0:
            follower.read()
    while len(follower.got) < clients[0].xlen("s"):
        follower.read()
    in_stream = [(id_of(i), fields[b"n"]) for i, fields in clients[0].xrange("s")]
    assert follower.got == in_stream
    ((_, delivered),) = _pairs(clients[1].xreadgroup("g", "c", {"s": ">"}))
    assert len(delivered) == len(in_stream)


def _pairs(reply: Any) -> list[tuple[bytes, list[Any]]]:
    """XREADGROUP's reply, which redis-py makes a map in RESP3 with one list more."""
    if isinstance(reply, dict):
        return [(key, found[0]) for key, found in reply.items()]
    return [(key, found) for key, found in reply]


def test_explicit_ids_below_a_promised_watermark_are_refused(
    clients: list[redis.Redis[Any]],
) -> None:
    client, follower = clients[0], Follower(clients[1])
    assert client.xadd("s", {"n": 1}, id="5-1") == b"5-1"
    follower.read()
    promised = id_of(follower.after)
    assert promised > (5, 1)
    for entry_id in ("5-2", f"{promised[0]}-7"):
        with pytest.raises(redis.ResponseError, match=r"is not above .*: readers were promised"):
            client.xadd("s", {"n": 2}, id=entry_id)
    later = client.xadd("s", {"n": 3}, id=f"{promised[0] + 100_000}-0")
    assert id_of(later) == (promised[0] + 100_000, 0)
    follower.read()
    assert [value for _, value in follower.got] == [b"1", b"3"]

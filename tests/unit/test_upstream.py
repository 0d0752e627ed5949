"""The IDs of the servers above a replica: as text, on the link, and rings among them."""

from __future__ import annotations

import pytest

from millstream.server.replication.link_protocol import LinkProtocol, Opening, Told
from millstream.server.replication.records import (
    Decoder,
    LinkError,
    RecordKind,
    encode,
    parse_upstream,
)
from millstream.server.replication.upstream import Upstream, parse_ids


def ring_of(count: int) -> list[Upstream]:
    """Servers of which each follows the next one, after they have exchanged all reports."""
    servers = [Upstream(f"{number:040x}"[::-1]) for number in range(count)]
    for _ in range(count):
        for number, server in enumerate(servers):
            told = servers[(number + 1) % count].told(has_primary=True)
            server.learn(parse_ids(told.decode()), "host:7000")
    return servers


@pytest.mark.parametrize("count", [1, 2, 64])
def test_every_server_of_a_ring_finds_it(count: int) -> None:
    sentence = "this server follows itself" if count == 1 else f"{count} servers follow each other"
    assert all(server.ring.startswith(sentence) for server in ring_of(count))


def test_the_list_of_a_ring_that_is_too_large_is_bounded() -> None:
    for server in ring_of(70):
        assert server.ring == ""
        assert len(server.told(has_primary=True)) == 64 * 17 - 1


def test_a_primary_and_another_primary_end_a_ring() -> None:
    first, second = ring_of(2)
    own = parse_ids(first.told(has_primary=False).decode())
    assert len(own) == 1
    second.learn(own, "host:7000")
    assert second.ring == ""
    first.forget()
    assert first.ring == ""
    assert first.told(has_primary=True).decode() == own[0]


@pytest.mark.parametrize("text", ["", "x", "0" * 15, "0" * 16 + "  " + "1" * 16, "0" * 16 + "\n"])
def test_an_invalid_list_of_ids_ends_the_link(text: str) -> None:
    with pytest.raises(LinkError, match="are not the IDs of servers"):
        parse_upstream(text.encode())
    link = new_link()
    with pytest.raises(LinkError):
        list(link.feed(b"+PONG\r\n+OK " + text.encode().replace(b"\n", b"\r\n") + b"!\r\n"))


def test_ids_arrive_in_the_answer_and_in_records() -> None:
    ids = ("0" * 16, "f" * 16)
    text = " ".join(ids).encode()
    assert list(new_link().feed(b"+PONG\r\n+OK " + text + b"\r\n")) == [Told(ids)]
    assert list(new_link().feed(b"+PONG\r\n+OK\r\n")) == []  # of an older server
    decoder = Decoder(100)
    decoder.feed(encode(0, RecordKind.UPSTREAM, text))
    record = decoder.next()
    assert record is not None
    assert (record.kind, parse_upstream(record.payload)) == (RecordKind.UPSTREAM, ids)


def new_link() -> LinkProtocol:
    return LinkProtocol(Opening("", "", 7000, "", "1", 16, (), 1), 100)

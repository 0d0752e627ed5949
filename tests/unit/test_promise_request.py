"""The candidate of an election asks other members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millstream.commands.admin.cluster_peers import (
    LastFrame,
    PromiseRequest,
    Reason,
    ReturnRequest,
)
from millstream.server.cluster.promise_request import Asker
from millstream.server.cluster.rare_warnings import RareWarnings
from millstream.server.replication import name_lookup

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def ask(answer: Answer) -> LastFrame | None:
    """Ask a member that answers in this way."""

    async def run() -> LastFrame | None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        asker = Asker(lambda: b"secret", lambda: None, RareWarnings())
        asked = PromiseRequest("s1", 4, "a" * 40, Reason.SILENCE, "b" * 40)
        found = await asker.ask(("127.0.0.1", port), asked)
        server.close()
        return found

    return asyncio.run(run())


def test_a_member_that_is_not_accepted_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Without a password, protected mode refuses the members on other machines."""

    async def deny(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-DENIED no password is set\r\n")
        await reader.read(1)
        writer.close()

    assert ask(deny) is None
    assert "does not accept this node: DENIED no password is set" in caplog.text


@pytest.mark.parametrize("line", [b"x" * 100_000, b"-TRYAGAIN later\r\n"])
def test_another_program_at_the_address_has_not_promised(line: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(line)
        await reader.read(1)
        writer.close()

    assert ask(answer) is None


def test_each_address_of_a_member_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def promise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"+OK\r\n*3\r\n:3\r\n$2\r\nab\r\n:9\r\n")
        await reader.read(1)
        writer.close()

    found = ["127.0.0.2", "127.0.0.1"]  # nothing listens at the first one
    monkeypatch.setattr(name_lookup, "_addresses", lambda *words: found)
    assert ask(promise) == LastFrame(3, "ab", 9)


def test_a_shard_is_asked_until_its_answer_is_safe() -> None:
    asked = ReturnRequest("1f", "a" * 40, 4, 2)
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in (b"+OK", b"-TRYAGAIN it is not on enough disks yet", replies.pop(0)):
            requests.append(await reader.readuntil(b"\r\n2\r\n" if requests else b"secret\r\n"))
            writer.write(reply + b"\r\n")
        writer.close()

    async def run() -> bool:
        requests.clear()
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = "127.0.0.1", server.sockets[0].getsockname()[1]
        asker = Asker(lambda: b"secret", lambda: None, RareWarnings())
        found = await asker.ask_return(address, asked)
        server.close()
        return found

    replies = [b"+OK", b"-ERR this shard serves the slots"]
    assert asyncio.run(run())
    assert b"RETURNSLOTS" in requests[1]
    assert requests[1] == requests[2]
    assert not asyncio.run(run())

"""The candidate of an election asks other members."""

from __future__ import annotations

import asyncio

import pytest

from millstream.commands.admin.cluster_peers import PromiseRequest
from millstream.server.cluster.promise_request import Asker


def test_a_member_that_is_not_accepted_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Without a password, protected mode refuses the members on other machines."""

    async def deny(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-DENIED no password is set\r\n")
        await reader.read(1)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(deny, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        asker = Asker(lambda: b"secret", lambda: None)
        asked = PromiseRequest("s1", 4, "a" * 40, "SILENCE", "b" * 40)
        assert await asker.ask(("127.0.0.1", port), asked) is None
        server.close()

    asyncio.run(run())
    assert "does not accept this node: DENIED no password is set" in caplog.text

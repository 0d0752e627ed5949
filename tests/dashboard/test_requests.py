"""What the dashboard asks the server, without a browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from starlette.requests import Request
from tests.dashboard.conftest import in_a_loop
from tests.support.client import RawClient
from tests.support.server import Server, free_port

from millstream.dashboard import pages
from millstream.dashboard import sampler as sampler_module
from millstream.dashboard.app import Dashboard
from millstream.dashboard.link import Link, Refused, Word
from millstream.dashboard.sampler import Sampler


class Browser:
    """Stays connected."""

    def __init__(self, **headers: str) -> None:
        self.headers = headers

    async def is_disconnected(self) -> bool:
        return False


def events_of(port: int, key: bytes, **headers: str) -> AsyncIterator[bytes]:
    board = Dashboard(f"redis://127.0.0.1:{port}", has_actions=False)
    return pages.Pages(board)._events(cast(Request, Browser(**headers)), 0, key)


async def first_entry(port: int, key: bytes, **headers: str) -> str:
    """The ID of the first entry that the browser gets."""
    async with asyncio.timeout(5):
        async for event in events_of(port, key, **headers):
            if not event.startswith(b":"):
                data, _, last = event.decode().strip().partition("\nid: ")
                assert json.loads(data.removeprefix("data: "))["id"] == last
                return last
    raise AssertionError


def add_after_first_read(
    monkeypatch: pytest.MonkeyPatch, client: RawClient, key: bytes
) -> list[bytes]:
    """Add an entry as soon as a read has found none; returns the IDs of such entries."""
    added: list[bytes] = []

    class Meddling(Link):
        async def call(self, *words: Word, db: int = 0) -> Any:
            reply = await super().call(*words, db=db)
            if words[0] == "XREAD" and not reply and not added:
                entry_id = client.call("XADD", key, "*", "f", "v")
                assert isinstance(entry_id, bytes)
                added.append(entry_id)
            return reply

    monkeypatch.setattr(pages, "Link", Meddling)
    monkeypatch.setattr(pages, "TAIL_BLOCK_MS", 50)
    return added


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("program", ["ours", "redis"])
def test_an_entry_added_between_two_reads_is_shown(
    program: str, is_new: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the stream does not exist at first."""
    server: Server = request.getfixturevalue(program)

    with server.client() as client:
        client.call("DEL", "between")
        if not is_new:
            client.call("XADD", "between", "1-1", "f", "old")
        added = add_after_first_read(monkeypatch, client, b"between")
        assert in_a_loop(first_entry(server.port, b"between")).encode() == added[0]
        client.call("DEL", "between")


def test_a_browser_that_connects_again_continues_after_its_last_entry(ours: Server) -> None:
    with ours.client() as client:
        client.pipeline([("XADD", "again", f"{n}-0", "f", "v") for n in range(1, 4)])
        headers = {"last-event-id": "1-0"}
        assert in_a_loop(first_entry(ours.port, b"again", **headers)) == "2-0"
        client.call("DEL", "again")


def test_the_browser_asks_again_while_the_server_does_not_answer() -> None:
    """The events end without a problem, which would end the following."""

    async def events() -> list[bytes]:
        return [event async for event in events_of(free_port(), b"any")]

    assert in_a_loop(events()) == []


# ---------------------------------------------------------------- a database that does not exist


@pytest.mark.parametrize("program", ["ours", "redis"])
@pytest.mark.parametrize("db", [99, -1])
def test_a_database_that_does_not_exist_is_refused(
    program: str, db: int, request: pytest.FixtureRequest
) -> None:
    """The connection stays, and the requests do not run in another database."""
    server: Server = request.getfixturevalue(program)

    async def ask() -> None:
        link = Link(f"redis://127.0.0.1:{server.port}")
        for first in (None, 0):  # without and with a database that was selected before
            if first is not None:
                await link.call("SET", "kept", "1", db=first)
            with pytest.raises(Refused, match="DB index is out of range"):
                await link.call("DEL", "kept", db=db)
        before = await link.call("CLIENT", "ID")
        with pytest.raises(Refused):
            await link.batch([("PING",), ("PING",)], db)
        assert await link.call("CLIENT", "ID") == before
        assert await link.call("DEL", "kept") == 1
        await link.close()

    in_a_loop(ask())


def test_the_other_streams_are_sampled(ours: Server) -> None:
    async def sample() -> None:
        sampler = Sampler(Link(f"redis://127.0.0.1:{ours.port}"))
        sampler.watch([(99, b"orders"), (0, b"orders")])
        await sampler.sample()
        assert list(sampler._history) == [(0, b"orders")]
        await sampler.link.close()

    in_a_loop(sample())


# ---------------------------------------------------------------- the sampler


def test_sampling_continues_after_any_error(
    ours: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged once, until there is another one."""
    monkeypatch.setattr(sampler_module, "SAMPLE_S", 0.001)
    errors = iter([ValueError("odd"), ValueError("odd"), Refused("not you"), KeyError("odd")])
    problems: list[str | None] = []  # before each sample

    class Failing(Sampler):
        async def sample(self) -> None:
            problems.append(self.problem)
            for error in errors:
                raise error
            await super().sample()

    async def run() -> None:
        sampler = Failing(Link(f"redis://127.0.0.1:{ours.port}"))
        sampler.start()
        async with asyncio.timeout(5):
            while sampler.problem is not None:
                await asyncio.sleep(0.001)
        await sampler.stop()
        assert sampler.info

    in_a_loop(run())
    assert problems[1:4] == ["ValueError: odd", "ValueError: odd", "not you"]
    logged = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [str(error) for error in logged] == ["odd", "'odd'"]

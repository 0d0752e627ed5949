"""Requests of the dashboard to the server, without a browser."""

from __future__ import annotations

import asyncio
import base64
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
from millstream.dashboard.board import Dashboard
from millstream.dashboard.dashboard_cli import allowed_hosts
from millstream.dashboard.guard import Tokens
from millstream.dashboard.proxied import checked_prefix, visitor_of
from millstream.dashboard.sampler import Sampler
from millstream.dashboard.server_link import RequestRefused, ServerLink, Word
from millstream.dashboard.stream_columns import COLUMNS, sort_key
from millstream.dashboard.stream_info import GroupInfo, StreamInfo


class Browser:
    """Stays connected."""

    def __init__(self, **headers: str) -> None:
        self.headers = headers

    async def is_disconnected(self) -> bool:
        return False


def events_of(port: int, key: bytes, **headers: str) -> AsyncIterator[bytes]:
    board = Dashboard(f"redis://127.0.0.1:{port}", has_actions=False)
    return pages.PageHandlers(board)._events(cast(Request, Browser(**headers)), 0, key)


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

    class Meddling(ServerLink):
        async def call(self, *words: Word, db: int = 0) -> Any:
            reply = await super().call(*words, db=db)
            if words[0] == "XREAD" and not reply and not added:
                entry_id = client.call("XADD", key, "*", "f", "v")
                assert isinstance(entry_id, bytes)
                added.append(entry_id)
            return reply

    monkeypatch.setattr(pages, "ServerLink", Meddling)
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


def test_a_reconnected_browser_continues_after_its_last_entry(ours: Server) -> None:
    with ours.client() as client:
        client.pipeline([("XADD", "again", f"{n}-0", "f", "v") for n in range(1, 4)])
        headers = {"last-event-id": "1-0"}
        assert in_a_loop(first_entry(ours.port, b"again", **headers)) == "2-0"
        client.call("DEL", "again")


def test_the_browser_retries_while_the_server_does_not_answer() -> None:
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
        link = ServerLink(f"redis://127.0.0.1:{server.port}")
        for first in (None, 0):  # without and with a database that was selected before
            if first is not None:
                await link.call("SET", "kept", "1", db=first)
            with pytest.raises(RequestRefused, match="DB index is out of range"):
                await link.call("DEL", "kept", db=db)
        before = await link.call("CLIENT", "ID")
        with pytest.raises(RequestRefused):
            await link.batch([("PING",), ("PING",)], db)
        assert await link.call("CLIENT", "ID") == before
        assert await link.call("DEL", "kept") == 1
        await link.close()

    in_a_loop(ask())


def test_the_other_streams_are_sampled(ours: Server) -> None:
    async def sample() -> None:
        sampler = Sampler(ServerLink(f"redis://127.0.0.1:{ours.port}"))
        sampler.watch([(99, b"orders"), (0, b"orders")])
        await sampler.sample()
        assert list(sampler._history) == [(0, b"orders")]
        await sampler.link.close()

    in_a_loop(sample())


# ---------------------------------------------------------------- the Host header


def test_a_host_without_a_port_is_one_with_port_80() -> None:
    """Browsers leave this port out."""
    assert allowed_hosts(["localhost", "[::1]"], 80, ["board.example"]) == {
        "localhost", "localhost:80", "[::1]", "[::1]:80", "board.example", "board.example:80"
    }  # fmt: skip
    assert allowed_hosts(["localhost"], 6480, ["board.example"]) == {
        "localhost:6480", "board.example", "board.example:6480"
    }  # fmt: skip


# ---------------------------------------------------------------- the list of streams


def overview_of(port: int, *queries: str) -> list[str]:
    """The pages of streams for these queries, from one dashboard."""

    async def ask() -> list[str]:
        board = Dashboard(f"redis://127.0.0.1:{port}", has_actions=False)
        shown = [await pages.PageHandlers(board).overview(request_of("/", one)) for one in queries]
        await board.sampler.link.close()
        return [bytes(one.body).decode() for one in shown]

    return in_a_loop(ask())


def request_of(path: str, query: str) -> Request:
    return Request(
        {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": query.encode(),
            "headers": [],
        }
    )


def caption_of(page: str) -> str:
    return page.partition("<caption>")[2].partition("</caption>")[0]


def test_a_sorted_search_covers_all_keys(ours: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the keys that are found come after those that are sorted without a search."""
    monkeypatch.setattr(sampler_module, "SURVEYED_MAX", 3)
    monkeypatch.setattr(pages, "SURVEYED_MAX", 3)
    with ours.client() as client:
        names = ("!a", "!b", "!c", "!d", "!y:1", "!y:2", "!y:3", "!y:4", "!z")
        for name in names:
            client.call("XADD", name, "*", "f", "v")
        found = overview_of(
            ours.port, "sort=lag", "search=%21&sort=lag", "search=%21y&sort=lag",
            "search=%21z&sort=lag", "search=%21y&sort=key", "search=%21z%21&sort=lag",
        )  # fmt: skip
        client.call("DEL", *names)
    everything, all_found, more, one, by_key, none = found
    assert caption_of(everything).endswith(" streams; only the first 3 are sorted and listed")
    assert caption_of(all_found) == (
        "9 streams with “!” in their key; only the first 3 are sorted and listed"
    )
    assert caption_of(more) == (
        "4 streams with “!y” in their key; only the first 3 are sorted and listed"
    )
    assert [f">!y:{number}</a>" in more for number in range(1, 5)] == [True, True, True, False]
    assert caption_of(one) == "1 stream with “!z” in its key"
    assert ">!z</a>" in one
    assert caption_of(by_key) == "4 streams with “!y” in their key"
    assert "No stream has this in its key" in none


@pytest.mark.parametrize("name", [one.sort for one in COLUMNS if one.sort_key])
def test_sorting_puts_streams_without_a_value_last(name: str) -> None:
    def stream(key: bytes, value: int | None, oldest_ms: int | None) -> StreamInfo:
        rules = {"dead-letters": value}
        groups = [GroupInfo(b"g", 1, 1, b"0-0", value, oldest_ms, 0, rules)] * (value or 0)
        return StreamInfo(0, key, value or 0, None, None, None, value, groups)

    streams = [stream(b"-", None, None), stream(b"least", 1, 2000), stream(b"most", 2, 1000)]
    ranked = sorted(streams, key=sort_key(name), reverse=True)  # type: ignore[arg-type]
    assert [one.key for one in ranked] == [b"most", b"least", b"-"]


def test_searches_do_not_survey_again(ours: Server) -> None:
    """While all streams can be surveyed, a search uses the same survey."""

    async def ask() -> None:
        sampler = Sampler(ServerLink(f"redis://127.0.0.1:{ours.port}"))
        (expected,) = (one for one in await sampler.survey(b"") if one.key == b"orders")
        (found,) = await sampler.survey(b"orders")
        assert found is expected
        await sampler.link.close()

    in_a_loop(ask())


# ---------------------------------------------------------------- the sampler


def test_sampling_continues_after_any_error(
    ours: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged once, until there is another one."""
    monkeypatch.setattr(sampler_module, "SAMPLE_S", 0.001)
    errors = iter(
        [ValueError("odd"), ValueError("odd"), RequestRefused("not you"), KeyError("odd")]
    )
    problems: list[str | None] = []  # before each sample

    class Failing(Sampler):
        async def sample(self) -> None:
            problems.append(self.problem)
            for error in errors:
                raise error
            await super().sample()

    async def run() -> None:
        sampler = Failing(ServerLink(f"redis://127.0.0.1:{ours.port}"))
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


# ---------------------------------------------------------------- a proxy


@pytest.mark.parametrize(
    ("text", "prefix"), [("", ""), ("/", ""), ("ms", "/ms"), ("/ms/", "/ms"), ("/a/b.c", "/a/b.c")]
)
def test_a_prefix_begins_with_a_slash(text: str, prefix: str) -> None:
    assert checked_prefix(text) == prefix


@pytest.mark.parametrize("text", ["/a b", "/../x", "/a//b", "/ä", '/"', "http://host/ms", "/a?b"])
def test_a_prefix_that_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it has to be a path"):
        checked_prefix(text)


def test_a_prefix_that_is_a_page_is_refused() -> None:
    """A request for the page would look like one with the prefix."""
    with pytest.raises(ValueError, match="/stream is a page of the dashboard"):
        checked_prefix("/stream/x")


def request_with(**headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return Request({"type": "http", "headers": pairs, "client": ("192.0.2.1", 5)})


FORWARDED = {
    "authorization": "Basic " + base64.b64encode("Zoë:secret".encode()).decode(),
    "x_forwarded_for": "198.51.100.7, 203.0.113.9",
    "x_forwarded_user": "ops",
}


def test_headers_of_a_proxy_count_only_if_it_is_trusted() -> None:
    """Any client can send them. A trusted proxy adds the last address."""
    request = request_with(**FORWARDED)
    assert visitor_of(request, trusts_proxy=False) == ("Zoë", "192.0.2.1")
    assert visitor_of(request, trusts_proxy=True) == ("ops", "203.0.113.9")
    assert visitor_of(request_with(), trusts_proxy=True) == ("-", "192.0.2.1")
    strange = request_with(x_forwarded_for="1.2.3.4\x1b[2J")
    assert visitor_of(strange, trusts_proxy=True) == ("-", "192.0.2.1")


def test_a_form_from_a_name_of_the_proxy_is_accepted() -> None:
    """A proxy may send a Host header of its own."""
    tokens = Tokens(["ops.example"])
    for origin, is_allowed in (
        ("https://ops.example", True), ("http://127.0.0.1:6480", True),
        ("https://evil.example", False), ("ops.example", False), ("", False),
    ):  # fmt: skip
        request = request_with(host="127.0.0.1:6480", origin=origin)
        assert tokens.allows(request, tokens.value) is is_allowed
        assert not tokens.allows(request, "other")

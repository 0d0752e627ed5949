"""CLUSTER PROMISE and RETURNSLOTS at the primary or member that asks: questions that other nodes
answer when the answer is on their disks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from millstream.commands.admin.cluster_peers import LastFrame, PromiseRequest, ReturnRequest
from millstream.errors import StartError
from millstream.server.cluster.member_actions import Address
from millstream.server.cluster.rare_warnings import RareWarnings
from millstream.server.replication.link_words import encode_request
from millstream.server.replication.name_lookup import connect_to_host

Reader = asyncio.StreamReader
Answer = TypeVar("Answer")

log = logging.getLogger("millstream.cluster")

CONNECT_S = 1.0
ANSWER_S = 2.0
AGAIN_S = 0.01  # while the other member waits: for frames of the candidate, or for its disk
AGAIN = b"-TRYAGAIN "
NOT_ACCEPTED = "%s:%d does not accept this node: %s"
LINE_BYTES = 4096


class Refusal(Exception):
    """The other member has answered with an error."""


class _Later(Refusal):
    """The other member is to be asked again."""


class Rejected(Exception):
    """The other member does not accept this one, because of its protected mode for example."""


class Asker:
    """Asks other members, each time over a connection of its own. `secret()` is that of the
    cluster, `make_context()` the TLS of links between servers."""

    def __init__(
        self,
        secret: Callable[[], bytes],
        make_context: Callable[[], ssl.SSLContext | None],
        warnings: RareWarnings,
    ) -> None:
        self._secret = secret
        self._make_context = make_context
        self._warnings = warnings

    async def ask(self, address: Address, asked: PromiseRequest) -> LastFrame | None:
        """The last frame on the disk of the other member, which has promised; None if it has
        refused, or has not answered."""
        return await self._answer(address, b"PROMISE", asked, _standing)

    async def ask_return(self, address: Address, asked: ReturnRequest) -> bool:
        """True if the primary of another shard has given slots back."""
        return await self._answer(address, b"RETURNSLOTS", asked, _line) == b"+OK"

    async def _answer(
        self,
        address: Address,
        name: bytes,
        asked: PromiseRequest | ReturnRequest,
        read: Callable[[Reader], Awaitable[Answer]],
    ) -> Answer | None:
        """The answer to a subcommand of CLUSTER; None if it is an error, or there is none."""
        host, port = address
        if not host:
            return None
        words = [b"CLUSTER", name, *(str(one).encode() for one in asked)]
        shown = b" ".join(words[1:4]).decode()
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._ask(host, port, words, read)
        except Rejected as problem:
            reason = str(problem)
            self._warnings.warn((address, reason), NOT_ACCEPTED, host, port, reason)
        except Refusal as problem:
            log.debug("%s:%d refuses %s: %s", host, port, shown, problem)
        except (OSError, TimeoutError, ValueError, EOFError, StartError) as problem:
            reason = str(problem) or "it has not answered in time"
            log.debug("%s:%d cannot be asked for %s: %s", host, port, shown, reason)
        return None

    async def _ask(
        self,
        host: str,
        port: int,
        words: list[bytes],
        read: Callable[[Reader], Awaitable[Answer]],
    ) -> Answer:
        context = self._make_context()
        async with asyncio.timeout(CONNECT_S):
            connect = partial(asyncio.open_connection, limit=LINE_BYTES)
            reader, writer = await connect_to_host(host, port, connect, context)
        try:
            writer.write(encode_request([b"CLUSTER", b"PEER", self._secret()]))
            try:
                await _line(reader)
            except Refusal as problem:
                raise Rejected(problem) from None
            while True:
                writer.write(encode_request(words))
                with contextlib.suppress(_Later):
                    return await read(reader)
                await asyncio.sleep(AGAIN_S)
        finally:
            writer.close()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """A line of a reply. Refusal for an error."""
    try:
        line = (await reader.readuntil(b"\r\n")).removesuffix(b"\r\n")
    except asyncio.LimitOverrunError:
        raise ValueError(f"its reply has a line of more than {LINE_BYTES} bytes") from None
    if line.startswith(b"-"):
        kind = _Later if line.startswith(AGAIN) else Refusal
        raise kind(line[1:].decode("utf-8", "replace"))
    return line


async def _standing(reader: asyncio.StreamReader) -> LastFrame:
    """The reply: a list of the term, the line of history, and the number."""
    if await _line(reader) != b"*3":
        raise ValueError("its reply is not a list of three")
    term = await _line(reader)
    await _line(reader)
    history = await _line(reader)
    number = await _line(reader)
    if not (term.startswith(b":") and number.startswith(b":")):
        raise ValueError("its reply has no numbers")
    return LastFrame(int(term[1:]), history.decode("ascii"), int(number[1:]))

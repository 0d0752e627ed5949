"""The errors of the client. Errors of the connection are redis-py's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from redis.exceptions import DataError, ResponseError


class MillstreamError(Exception):
    """The base class of all errors that this package defines. Its `repr` has the attributes, too:
    the text of an error may name only some of them."""

    def __repr__(self) -> str:
        facts = {name: value for name, value in vars(self).items() if name[0] != "_"}
        shown = [repr(str(self)), *(f"{name}={value!r}" for name, value in facts.items())]
        return f"{type(self).__name__}({', '.join(shown)})"


class InvalidPosition(MillstreamError, ValueError):
    """The value is not a position, or a token that is malformed or of another version."""


class InvalidStream(MillstreamError, ValueError):
    """The shards are not valid, or the token and the shards do not belong together."""


class InvalidFields(MillstreamError, DataError, ValueError):
    """The fields of an entry are not valid: their form, the type of a value, its length, or
    text that cannot be encoded as UTF-8."""


class ShardUnavailable(MillstreamError):
    """A shard has not answered for `max_wait` seconds, or a child of a sealed shard has not existed
    for this time, and nothing can be returned without it.

    `shard` is the shard's name. `cause` is the last error, or one that says what is missing; None
    if the server is only silent.
    """

    def __init__(self, shard: str, cause: BaseException | None) -> None:
        self.shard = shard
        self.cause = cause
        why = "its server does not answer" if cause is None else str(cause)
        super().__init__(f"the shard {shard!r} is not available: {why}")

    def __reduce__(self) -> tuple[type[ShardUnavailable], tuple[str, BaseException | None]]:
        return type(self), (self.shard, self.cause)


class Refused(MillstreamError, ResponseError):
    """The base class of errors that the server replied."""


class Sealed(Refused):
    """The stream is sealed and takes no new entry. `children` are the streams it continues in. In a
    pipeline, a line break in a name is shown as a blank, as in the server's text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.children: list[str] = _QUOTED.findall(text)


class Stalled(Refused):
    """Too much waits for an open reservation. Try again after the reservation is settled."""


class ReservationLost(Refused):
    """The reservation was given up, or its lease has expired, or its entry was removed: there is no
    entry with this ID, and there will be none."""


class FactAlreadyDone(Refused):
    """The entry exists already, with this ID and these fields."""


class NotReserved(Refused):
    """This writer has not reserved the ID, or the ID belongs to an entry with other fields."""


class WrongServer(Refused):
    """The server does not know the command: it is not a millstream server, or it is too old."""


_QUOTED = re.compile(r"'(.*?)'(?=, '|$)", re.DOTALL)

_BY_CODE: dict[str, type[Refused]] = {
    "SEALED": Sealed,
    "STALLED": Stalled,
    "FACTLOST": ReservationLost,
    "FACTDONE": FactAlreadyDone,
    "NORESERVATION": NotReserved,
}


def _keys(command: str, words: Sequence[Any]) -> str:
    """The key of a command, or its keys; for TMREAD, half of the words after STREAMS."""
    keys = words[1:2]
    if command == "TMREAD" and "STREAMS" in words:
        rest = words[list(words).index("STREAMS") + 1 :]
        keys = rest[: len(rest) // 2]
    named = ", ".join(map(repr, keys))
    return named if len(keys) == 1 else f"one of {named}"


def refusal(error: ResponseError, words: Sequence[Any], server: str) -> ResponseError:
    """The same error as one of this module's classes, where there is one for it. `words` are those
    of the command."""
    text = str(error)
    kind = _BY_CODE.get(text.partition(" ")[0])
    if kind is not None:
        return kind(text)
    command = words[0].decode() if isinstance(words[0], bytes) else str(words[0])
    command = command.upper()
    appends_once = command == "XADD" and "IDMP" in words  # as a writer does
    if text.startswith("WRONGTYPE") and (appends_once or command.startswith("T")):
        return ResponseError(f"{text}: {_keys(command, words)} is not a stream")
    if "Invalid stream ID" in text and appends_once:
        command = "XADD with IDMP"
    elif "unknown command" not in text or not command.startswith("T"):
        return error
    return WrongServer(
        f"{server} is not a millstream server of this version: it does not know the command "
        f"{command}"
    )

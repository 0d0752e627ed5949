"""The log of who did what: failed logins, and the commands of administrators (rows with the trait
`audited`) with user, address and words, whether they were run or refused.

Clients decide how many of these lines there are, so their number per second is limited; the lines
that were left out are counted in the next one. Commands that were refused have a limit of their
own: a client without rights cannot hide what an administrator does. No line has a password.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from millstream.commands.admin.client_line import user_name
from millstream.quoted_words import quoted
from millstream.server.monitor.line_limit import LineLimit
from millstream.server.monitor.log import LOGGER, VERBOSE
from millstream.server.monitor.secrets import described
from millstream.server.monitor.slowlog import cut

COMMANDS_PER_S = 50
REFUSALS_PER_S = 5
LOGINS_PER_S = 5
NOT_LOGGED_IN = "(not logged in)"
# Commands that are audited only with this word: the others of the row read.
ONLY_WITH = {"acl|log": b"RESET"}
_REFUSED = ("NOPERM", "NOAUTH")


def _text(word: bytes) -> str:
    return word.decode("utf-8", "backslashreplace")


def _shown(word: bytes) -> str:
    """A word for a line: in quotes if it is empty or has other characters than printable ASCII."""
    is_plain = word and all(0x20 < byte < 0x7F and byte not in b"\"'\\" for byte in word)
    return word.decode() if is_plain else quoted(word)


class Audit:
    """Writes the lines. `tick_second` tells how many were left out if no further line does."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.directives: Collection[bytes] = ()  # all names: values of others are hidden
        self._commands = LineLimit(now_s=now_s, lines=COMMANDS_PER_S)
        self._refusals = LineLimit(now_s=now_s, lines=REFUSALS_PER_S)
        self._logins = LineLimit(now_s=now_s, lines=LOGINS_PER_S)

    def command(
        self, client: Any, user: bytes | None, name: str, words: Sequence[bytes], error: str | None
    ) -> None:
        """A command of `client` was run, or ended with an error. `user` None: not logged in."""
        only_with = ONLY_WITH.get(name)
        if only_with is not None and only_with not in map(bytes.upper, words[2:3]):
            return
        code = "" if error is None else error.partition(" ")[0]
        is_refused = code in _REFUSED
        level = logging.WARNING if is_refused else logging.INFO
        if not LOGGER.isEnabledFor(level):
            return
        limit = self._refusals if is_refused else self._commands
        more = limit.more()
        if more is not None:
            with contextlib.suppress(MemoryError):
                self._log_command(client, user, name, words, code, level, more)

    def _log_command(
        self,
        client: Any,
        user: bytes | None,
        name: str,
        words: Sequence[bytes],
        code: str,
        level: int,
        more: str,
    ) -> None:
        shown = cut(described(words, self.directives))
        who = NOT_LOGGED_IN if user is None else _shown(cut([user])[0])
        end = f", {'refused' if code in _REFUSED else 'failed'}: {code}" if code else ""
        facts = {
            "event": "admin_command",
            "user": None if user is None else _text(cut([user])[0]),
            "address": client.address,
            "client_id": client.id,
            "client_name": _text(client.name),
            "db": client.db_index,
            "command": name,
            "words": [_text(word) for word in shown],
            "result": code or "OK",
        }
        LOGGER.log(
            level, "admin    user %s, %s: %s%s%s",
            who, client.address, " ".join(map(_shown, shown)), end, more,
            extra={"facts": facts},
        )  # fmt: skip

    def login_failed(self, client: Any, name: bytes, way: bytes) -> None:
        """A client has given a wrong password, or the name of a user who is off or does not exist.
        `way` is the command, or the directive of logins by certificate."""
        if not LOGGER.isEnabledFor(logging.WARNING):
            return
        more = self._logins.more()
        if more is None:
            return
        with contextlib.suppress(MemoryError):
            shown = cut([name])[0]
            facts = {
                "event": "login_failed",
                "user": _text(shown),
                "address": client.address,
                "client_id": client.id,
                "command": _text(way).lower(),
            }
            LOGGER.warning(
                "login    failed for user %s, %s (%s)%s",
                _shown(shown), client.address, _text(way).upper(), more,
                extra={"facts": facts},
            )  # fmt: skip

    # Connections, at the level `verbose`

    def refused(self, client: Any, reply: bytes) -> None:
        """A connection was refused with this reply; empty while the server stops."""
        if LOGGER.isEnabledFor(VERBOSE):
            reason = reply.decode()[1:].partition(".")[0].strip() or "the server stops"
            LOGGER.log(VERBOSE, "client   %s was refused: %s", client.address, reason)

    def connected(self, client: Any) -> None:
        if LOGGER.isEnabledFor(VERBOSE):
            self._log_connection(client, "client_connected", "connected")

    def disconnected(self, client: Any, now_ms: int) -> None:
        if not LOGGER.isEnabledFor(VERBOSE):
            return
        seconds = max(0, now_ms - client.created_ms) / 1000
        name = f", name {_shown(client.name)}" if client.name else ""
        self._log_connection(
            client, "client_disconnected",
            f"disconnected after {seconds:.3f} s and {client.total_commands} commands{name}",
        )  # fmt: skip

    def _log_connection(self, client: Any, event: str, happened: str) -> None:
        user = _shown(user_name(client)) if client.authenticated else NOT_LOGGED_IN
        facts = {
            "event": event,
            "user": user,
            "address": client.address,
            "client_id": client.id,
            "client_name": _text(client.name),
        }
        LOGGER.log(
            VERBOSE, "client   user %s, %s: %s (id %d)",
            user, client.address, happened, client.id,
            extra={"facts": facts},
        )  # fmt: skip

    def tick_second(self) -> None:
        """Tell how many lines were left out and not told yet."""
        for limit, level, what in (
            (self._commands, logging.INFO, "admin    and %d more commands of administrators"),
            (self._refusals, logging.WARNING, "admin    and %d more refused commands"),
            (self._logins, logging.WARNING, "login    and %d more failed logins"),
        ):
            left_out = limit.rest()
            if left_out:
                LOGGER.log(level, what, left_out)

"""`python -m tests.crash.writer_rounds --rounds 50`: kill -9 under writers with open reservations.

Twenty writers, others that append, and readers of every kind play at once, while snapshots,
rewrites and DEBUG RELOADs run (`tests/support/writers.py`). After a random number of answers the
process is killed and started again on its data; then everything that was answered must be true.
The rounds follow one another on the same data and the same record.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

from tests.crash.killing import End, TalkingClient, Target, kill, play_and_kill, run
from tests.support.client import RawClient
from tests.support.writers import (
    Appender,
    Asking,
    Keeper,
    Player,
    Reading,
    Record,
    Request,
    Writer,
    all_readers,
    check,
    finish,
)

ANSWERS_MAX = 2000
WRITERS = 20
DIRECTIVES = {"auto-aof-rewrite-min-size": "100kb", "enable-debug-command": "yes"}
KEEPING: tuple[Request, ...] = (b"BGSAVE",), (b"BGREWRITEAOF",), (b"DEBUG", b"RELOAD")


def converse(connection: RawClient, asking: Asking, count: Callable[[], None]) -> None:
    """Ask what a player asks, until it ends."""
    try:
        request = next(asking)
        while True:
            reply = connection.call(*request)
            count()
            request = asking.send(reply)
    except StopIteration:
        pass


class Conversation(TalkingClient):
    """A player on its own connection, until the server dies."""

    def __init__(self, player: Player, connection: RawClient, count: Callable[[], None]) -> None:
        super().__init__(repr(player), connection)
        self._player = player
        self._count = count

    def talk(self) -> None:
        converse(self.connection, self._player.play(), self._count)


class WriterRounds:
    """One directory, killed again and again."""

    def __init__(
        self, server: Target, seed: int, end: End = kill, keeping: tuple[Request, ...] = KEEPING
    ):
        self.server = server
        self.record = Record(WRITERS)
        self.readers = all_readers()
        self._end = end
        self._keeping = keeping
        self._seed = seed
        self._round = 0
        self._chance = random.Random(seed)

    def play(self) -> str:
        """Load, kill, start, check; returns a summary."""
        self._round += 1
        enough = self.record.answers + self._chance.randint(1, ANSWERS_MAX)
        talks = [Conversation(p, self.server.client(), self._count) for p in self._players()]
        play_and_kill(self.server, talks, lambda: self.record.answers, enough, self._end)
        self._converse(check(self.record, self.readers))
        completed = sum(len(book.completed) for book in self.record.books.values())
        reserved = sum(len(mine.open) for mine in self.record.writers)
        return f"{completed} entries completed, {reserved} reserved"

    def finish(self) -> str:
        """Settle everything; every reader then has every entry."""
        self._converse(finish(self.readers))
        return "every reader has every entry"

    def _players(self) -> list[Player]:
        name = f"{self._seed}/{self._round}"
        return [
            *(Writer(self.record, f"{name}/{one.name!r}", one) for one in self.record.writers),
            *(Appender(self.record, f"{name}/a{place}") for place in range(2)),
            *(Reading(self.record, name, reader) for reader in self.readers),
            Keeper(self.record, name, self._keeping),
        ]

    def _converse(self, asking: Asking) -> None:
        with self.server.client() as client:
            converse(client, asking, self._count)

    def _count(self) -> None:
        with self.record.lock:
            self.record.answers += 1


if __name__ == "__main__":
    sys.exit(run("tests.crash.writer_rounds", __doc__, DIRECTIVES, WriterRounds))

"""Errors that cross rooms, in the words a client or an operator reads.

A handler refuses a command by raising CommandError; the executor turns it into a RESP error.
Texts follow Redis 8.6 where Redis has words for the case.
"""


class CommandError(Exception):
    """A refused command; the message begins with Redis' error code (``ERR``, ``WRONGTYPE`` ...)."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class DataError(Exception):
    """A file that cannot be trusted: says which file, at which offset, and what to do."""


class StartError(Exception):
    """The server cannot start: one sentence that says why."""


WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
SYNTAX = "ERR syntax error"
NOT_INTEGER = "ERR value is not an integer or out of range"
INVALID_ID = "ERR Invalid stream ID specified as stream command argument"
NO_SUCH_KEY = "ERR no such key"
EXHAUSTED = "ERR The stream has exhausted the last possible ID, unable to add more items"


def shown(word: bytes) -> str:
    """A client's word inside an error; its bytes come back as they are."""
    return word.decode("utf-8", "surrogateescape")


def wrong_arity(name: str) -> CommandError:
    """Redis' words for a wrong number of arguments; a subcommand is named ``container|sub``."""
    return CommandError(f"ERR wrong number of arguments for '{name}' command")

"""Errors that several packages raise or catch, with the texts that a client or an operator reads.

A handler refuses a command by raising CommandError; the executor turns it into a RESP error.
Texts follow Redis where it has a text for the case.
"""

import re


class CommandError(Exception):
    """A refused command; the message begins with Redis' error code (``ERR``, ``WRONGTYPE`` ...)."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class DataError(Exception):
    """Files that cannot be used or trusted. The text names the file and says what to do."""


class DamageError(DataError):
    """A data file is damaged or missing.

    `offset` counts bytes from the beginning of the file. If it is None, the error concerns the
    whole file, and `reason` continues the sentence after the file's name.
    """

    def __init__(
        self,
        file: str,
        offset: int | None,
        reason: str,
        advice: str = "restore this file from a copy",
    ) -> None:
        what = reason if offset is None else f"is damaged at offset {offset}: {reason}"
        super().__init__(f"{file} {what}; nothing was changed; {advice}")
        self.file = file
        self.offset = offset
        self.reason = reason


class ForeignError(DamageError):
    """A file that belongs to another data directory."""


class FormatError(DataError):
    """An undamaged file in a format that this version does not support."""

    def __init__(self, sentence: str) -> None:
        super().__init__(
            f"{sentence}: it was written by a newer millstream. Use that one, or a backup"
        )


class BlockError(ValueError):
    """Bytes that are not a block; `at` is the offset of the fault in the given bytes."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at


class PayloadError(ValueError):
    """Bytes that are not a value in Redis' serialized form (DUMP, RESTORE)."""


class StartError(Exception):
    """The server cannot start. The text is one sentence that gives the reason."""


DEBUG_NOT_ALLOWED = (
    'ERR DEBUG command not allowed. If the enable-debug-command option is set to "local", you can '
    "run it from a local connection, otherwise you need to set this option in the configuration "
    "file, and then restart the server."
)
LOADING = "LOADING Redis is loading the dataset in memory"
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
SYNTAX = "ERR syntax error"
NOT_INTEGER = "ERR value is not an integer or out of range"
INVALID_ID = "ERR Invalid stream ID specified as stream command argument"
NEEDS_IDS = "ERR syntax error, expected IDS keyword"
BAD_NUMIDS = "ERR numids must be a positive integer"
TOO_FEW_IDS = "ERR number of IDs doesn't match numids"
NO_SUCH_KEY = "ERR no such key"
EXHAUSTED = "ERR The stream has exhausted the last possible ID, unable to add more items"


def shown(word: bytes) -> str:
    """A client's word for an error text; encoding the error restores the word's exact bytes."""
    return word.decode("utf-8", "surrogateescape")


def refused_in_cluster(name: str) -> str:
    """The error of a command that changes a cluster of Redis, which has no map of its own here."""
    return f"ERR {name} does not change this cluster: see millstream cluster --help"


def refused_to_subscriber(name: str) -> str:
    """Redis' error of most commands for a RESP2 client with subscriptions."""
    return (
        f"ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET "
        "are allowed in this context"
    )


def wrong_arity(name: str) -> CommandError:
    """Redis' error for a wrong number of arguments; a subcommand is named ``container|sub``."""
    return CommandError(f"ERR wrong number of arguments for '{name}' command")


# A backslash that would look like the beginning of one of our escapes.
_AMBIGUOUS = r"\\(?=x[0-9a-f]{2})"


def readable(raw: bytes) -> str:
    """Bytes as a text in which ``\\xHH`` always stands for one byte: one that is not UTF-8, or a
    backslash that would look like an escape. So different bytes are different texts."""
    text = re.sub(_AMBIGUOUS, r"\\x5c", raw.decode("utf-8", "surrogateescape"))
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def printable(text: str) -> str:
    """A text that a terminal can show on one line: control characters are escaped."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def counted(count: int, noun: str) -> str:
    """`1 entry`, `2 entries`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") and noun != "key" else f"{count} {noun}s"

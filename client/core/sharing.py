"""Requests that may follow each other on one connection."""

from __future__ import annotations

import copy

from millstream.client.core.steps import Ask
from millstream.client.core.words import LONG_BYTES, is_long


def may_share(ask: Ask) -> bool:
    """False for requests that would hold others back, or end their connection: one that waits, and
    one with a word that may be above the server's limit, because the server closes the connection
    when it sees the length."""
    if ask.wait_s:
        return False
    for command in ask.commands:
        packed = command.packed
        if is_long(command.words) if packed is None else len(packed) > LONG_BYTES:
            return False
    return True


def error_of_its_own(error: Exception) -> Exception:
    """The error of a connection for one of its requests: raising one changes it. An error that
    cannot be copied, as a credential provider may raise, is the same for all."""
    try:
        return copy.copy(error)
    except Exception:
        return error

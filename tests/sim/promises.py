"""A broken promise, and the IDs in effects."""

from __future__ import annotations

from tests.sim.data import EntryId


class BrokenPromise(AssertionError):
    """The server broke a promise."""


def demand(true: object, sentence: str) -> None:
    if not true:
        raise BrokenPromise(sentence)


def id_of(text: bytes) -> EntryId:
    ms, seq = text.split(b"-")
    return int(ms), int(seq)

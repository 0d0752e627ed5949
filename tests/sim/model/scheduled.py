"""Scheduled entries: TSCHEDULE, TSCHEDULED, TCANCEL."""

from __future__ import annotations

from tests.sim.data import EntryId
from tests.sim.model.answers import Answer, dotted, parse_id
from tests.sim.model.clients import ClientModel, Request
from tests.sim.model.model import Model, does


@does("tschedule")
def tschedule(model: Model, client: ClientModel, words: Request) -> Answer:
    """TSCHEDULE key AT|IN ms name field value ..."""
    key, name, fields = (client.db, words[1]), words[4], words[5:]
    now_ms = model.state.now_ms
    due_ms = int(words[3]) + (now_ms if words[2] == b"IN" else 0)
    stream = model.values.make(key)
    ticket = due_ms, stream.last_number + 1
    stream.cancel_named(name)
    stream.put_scheduled(ticket, name, fields)
    if due_ms <= now_ms:
        for earlier in sorted(one for one in stream.scheduled if one <= ticket):
            model.log.fire(key, stream, earlier)
    return dotted(ticket)


@does("tscheduled")
def tscheduled(model: Model, client: ClientModel, words: Request) -> Answer:
    """TSCHEDULED key - + COUNT n"""
    stream = model.values.stream((client.db, words[1]))
    found: list[EntryId] = [] if stream is None else sorted(stream.scheduled)[: int(words[5])]
    assert stream is not None or not found
    return [_row(stream.scheduled[ticket], ticket) for ticket in found]  # type: ignore[union-attr]


def _row(entry: tuple[bytes, tuple[bytes, ...]], ticket: EntryId) -> Answer:
    name, fields = entry
    return [dotted(ticket), name, *fields]


@does("tcancel")
def tcancel(model: Model, client: ClientModel, words: Request) -> Answer:
    """TCANCEL key NAME name ...|ticket ..."""
    stream = model.values.stream((client.db, words[1]))
    if stream is None:
        return 0
    if words[2] == b"NAME":
        return sum(stream.cancel_named(name) for name in words[3:])
    return sum(stream.scheduled.pop(parse_id(i), None) is not None for i in words[2:])

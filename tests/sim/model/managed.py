"""Managed groups: TGROUP, TNACK, TEXTEND."""

from __future__ import annotations

from tests.sim.data import rounded_up
from tests.sim.model.answers import OK, OUT_OF_MEMORY, Answer, Refused, parse_id
from tests.sim.model.claims import named, option
from tests.sim.model.clients import ClientModel, Request
from tests.sim.model.model import Model, does

NOT_MANAGED = "ERR the group has no TIMEOUT: set one with TGROUP"


@does("tgroup")
def tgroup(model: Model, client: ClientModel, words: Request) -> Answer:
    """TGROUP key group START id [TIMEOUT ms] [BACKOFF n ms ...]"""
    key, name, start = (client.db, words[1]), words[2], words[4]
    stream = model.values.stream(key)
    group = None if stream is None else model.values.live(key, name)
    timeout, backoff = option(words, b"TIMEOUT"), None
    if b"BACKOFF" in words:
        at = words.index(b"BACKOFF") + 2
        backoff = tuple(map(int, words[at : at + int(words[at - 1])]))
    rules = (0, ()) if group is None else (group.timeout_ms, group.backoff_ms)
    timeout_ms = rules[0] if timeout is None else int(timeout)
    backoff_ms = rules[1] if backoff is None else backoff
    if backoff_ms and not timeout_ms:
        raise Refused("ERR BACKOFF, MAXDELIVER, DEADLETTER, MAXINFLIGHT and ORDER need a TIMEOUT")
    if group is None:
        if model.state.memory_full:
            raise Refused(OUT_OF_MEMORY)
        stream = model.values.make(key)
        offset = stream.last_id if start == b"$" else parse_id(start)
        group = stream.make_group(name, offset, 0, model.state.steady_ms)
    if (group.timeout_ms, group.backoff_ms) != (timeout_ms, backoff_ms):
        group.timeout_ms, group.backoff_ms = timeout_ms, backoff_ms
        model.waits.mark_ready(key)
    group.last_used_ms = model.state.steady_ms
    return OK


@does("tnack")
def tnack(model: Model, client: ClientModel, words: Request) -> Answer:
    """TNACK key group consumer SILENT|FAIL|FATAL [DELAY ms] IDS n id ...|ALL"""
    stream, group = named(model, client, words)
    if not group.timeout_ms:
        raise Refused(NOT_MANAGED)
    now_ms, delay = model.state.steady_ms, option(words, b"DELAY")
    ids = group.held_by(words[3])
    if b"IDS" in words:
        ids = [parse_id(word) for word in words[words.index(b"IDS") + 2 :]]
    codes: list[Answer] = []
    for entry_id in ids:
        held = entry_id in group.held_by(words[3])
        if held and words[4] == b"FATAL":
            exists = entry_id in stream.entries
            codes.append(3 if exists else 1)
            if not exists:
                del group.pending[entry_id]
            else:
                group.give_back(entry_id, now_ms, words[4], None)
            continue
        codes.append(1 if held else -1)
        if held:
            delay_ms = None if delay is None else rounded_up(int(delay))
            group.give_back(entry_id, now_ms, words[4], delay_ms)
            model.waits.mark_ready((client.db, words[1]))
    group.last_used_ms = now_ms
    return codes if b"IDS" in words else len(codes)


@does("textend")
def textend(model: Model, client: ClientModel, words: Request) -> Answer:
    """TEXTEND key group consumer ms IDS n id ..."""
    _, group = named(model, client, words)
    if not group.timeout_ms:
        raise Refused(NOT_MANAGED)
    codes: list[Answer] = []
    for entry_id in map(parse_id, words[7:]):
        held = entry_id in group.held_by(words[3])
        codes.append(1 if held else -1)
        if held:
            group.pending[entry_id].extend(model.state.steady_ms, rounded_up(int(words[4])))
            group.note(group.pending[entry_id])
    group.last_used_ms = model.state.steady_ms
    return codes

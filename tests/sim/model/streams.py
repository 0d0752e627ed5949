"""Appends, ranges and deletions: TAPPEND, TAPPEV, TRANGE, XADD, XDEL, XLEN."""

from __future__ import annotations

from tests.sim.data import ZERO
from tests.sim.model import claims, once
from tests.sim.model.answers import Answer, Refused, dashed, dotted, parse_id
from tests.sim.model.clients import ClientModel, Request
from tests.sim.model.model import Model, does

ID_TOO_LOW = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
ID_ZERO = "ERR The ID specified in XADD must be greater than 0-0"
# XADD's options, each with its number of words.
XADD_OPTIONS = {b"MAXLEN": 2, b"MINID": 2, b"DELREF": 1, b"ACKED": 1, b"KEEPREF": 1, b"IDMP": 3,
                b"NOMKSTREAM": 1}  # fmt: skip


@does("tappend")
def tappend(model: Model, client: ClientModel, words: Request) -> Answer:
    return dotted(model.log.append((client.db, words[1]), words[2:]))


@does("tappev")
def tappev(model: Model, client: ClientModel, words: Request) -> Answer:
    _, name, unit, number, *fields = words
    key = client.db, name
    reply: Answer = 0
    if fields:
        reply = dotted(model.log.append(key, tuple(fields)))
    stream = model.values.stream(key)
    if stream is None:
        return 0
    if unit.upper() == b"COUNT":
        ids = list(stream.entries)
        gone = ids[: max(0, len(ids) - int(number))]
    else:
        now_ms = max(model.state.now_ms, stream.last_id[0])
        gone = [i for i in stream.entries if now_ms - i[0] >= int(number)]
    evicted = model.log.evict(key, stream, gone)
    return reply if fields else evicted


@does("xadd")
def xadd(model: Model, client: ClientModel, words: Request) -> Answer:
    key, at = (client.db, words[1]), 2
    while words[at] in XADD_OPTIONS:
        at += XADD_OPTIONS[words[at]]
    options, text, fields = words[:at], words[at], words[at + 1 :]
    stream = model.values.stream(key)
    known = once.known(model, stream, options)
    if known is not None:
        return dashed(known)
    entry_id = None
    if text != b"*":
        entry_id = parse_id(text)
        if entry_id == ZERO:
            raise Refused(ID_ZERO)
        if stream is not None and entry_id <= stream.last_id:
            raise Refused(ID_TOO_LOW)
    made = model.log.append(key, fields, entry_id)
    stream = model.values.make(key)
    once.note_once(model, stream, options, made)
    if b"MAXLEN" in options or b"MINID" in options:
        claims.trim(model, key, stream, options)
    return dashed(made)


@does("xdel")
def xdel(model: Model, client: ClientModel, words: Request) -> Answer:
    stream = model.values.stream((client.db, words[1]))
    return 0 if stream is None else sum(stream.delete(parse_id(i)) for i in words[2:])


@does("xlen")
def xlen(model: Model, client: ClientModel, words: Request) -> Answer:
    stream = model.values.stream((client.db, words[1]))
    return 0 if stream is None else len(stream.entries)


@does("trange")
def trange(model: Model, client: ClientModel, words: Request) -> Answer:
    stream = model.values.stream((client.db, words[1]))
    if stream is None:
        return []
    start = ZERO if words[2] == b"-" else parse_id(words[2])
    ids = [entry_id for entry_id in stream.entries if entry_id >= start]
    if len(words) > 4:
        ids = ids[: int(words[5])]
    return [[dotted(i), *stream.entries[i]] for i in ids]

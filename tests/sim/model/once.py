"""Messages that count once: TAPPENDONCE, TAPPENDMANY, TSEEK, XCFGSET, and IDMP of XADD."""

from __future__ import annotations

from tests.sim.data import ZERO, EntryId, Stream
from tests.sim.model.answers import OK, Answer, Refused, dotted, parse_id
from tests.sim.model.claims import option
from tests.sim.model.clients import ClientModel, Request
from tests.sim.model.model import Model, does


@does("tappendonce")
def tappendonce(model: Model, client: ClientModel, words: Request) -> Answer:
    """TAPPENDONCE key ID id field value ... or key PRODUCER name seq field value ..."""
    return append_once(model, client, words, True)


def append_once(model: Model, client: ClientModel, words: Request, is_last: bool) -> Answer:
    stream = model.values.stream((client.db, words[1]))
    if words[2] == b"ID":
        entry_id = parse_id(words[3])
        if entry_id == ZERO:
            raise Refused("ERR The ID specified in TAPPENDONCE must be greater than 0.0")
        if stream is not None and entry_id <= stream.last_id:
            return None
        return dotted(model.log.append((client.db, words[1]), words[4:], entry_id, is_last))
    name, number = words[3], int(words[4])
    if stream is not None and stream.producers.get(name, -1) >= number:
        return None
    entry_id = model.log.append((client.db, words[1]), words[5:], None, is_last)
    stream = model.values.make((client.db, words[1]))
    stream.note_producer(name, number)
    for silent in list(stream.producers)[: -model.data.producers_max]:
        del stream.producers[silent]
    return dotted(entry_id)


@does("tappendmany")
def tappendmany(model: Model, client: ClientModel, words: Request) -> Answer:
    """TAPPENDMANY numkeys key ... <ID | PRODUCER name> <numentries <id-or-seq numfields ...> ...>
    is as many TAPPENDONCE, all or none; the policy is kept after all entries of a stream."""
    count = int(words[1])
    keys, at = words[2 : 2 + count], 2 + count
    for key in keys:
        model.values.stream((client.db, key))
    how = words[at : at + (2 if words[at] == b"PRODUCER" else 1)]
    at += len(how)
    appended = 0
    for key in keys:
        entries, at = int(words[at]), at + 1
        for left in range(entries - 1, -1, -1):
            end = at + 2 + 2 * int(words[at + 1])
            once = (b"TAPPENDONCE", key, *how, words[at], *words[at + 2 : end])
            appended += append_once(model, client, once, left == 0) is not None
            at = end
    return appended


@does("tseek")
def tseek(model: Model, client: ClientModel, words: Request) -> Answer:
    """TSEEK key after-id n"""
    stream = model.values.stream((client.db, words[1]))
    after = [] if stream is None else stream.newer(parse_id(words[2]))[: int(words[3])]
    return [len(after), dotted(after[-1]) if after else None]


@does("xcfgset")
def xcfgset(model: Model, client: ClientModel, words: Request) -> Answer:
    """XCFGSET key IDMP-DURATION s IDMP-MAXSIZE n"""
    stream = model.values.stream((client.db, words[1]))
    if stream is None:
        raise Refused("ERR no such key")
    stream.once.configure(int(words[3]), int(words[5]))
    return OK


def known(model: Model, stream: Stream | None, words: Request) -> EntryId | None:
    """The ID that XADD's message got when it was sent before."""
    producer = option(words, b"IDMP")
    if stream is None or producer is None:
        return None
    return stream.once.find(producer, words[words.index(b"IDMP") + 2], model.state.now_ms)


def note_once(model: Model, stream: Stream, words: Request, entry_id: EntryId) -> None:
    producer = option(words, b"IDMP")
    if producer is not None:
        iid = words[words.index(b"IDMP") + 2]
        stream.once.add(producer, iid, entry_id, min(entry_id[0], model.state.now_ms))

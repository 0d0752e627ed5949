"""Keys, strings, expiries, and retention policies."""

from __future__ import annotations

from tests.sim.data import Stream, Value
from tests.sim.model.answers import OK, WRONG_TYPE, Answer, Fields, Refused
from tests.sim.model.clients import ClientModel, Key, Request
from tests.sim.model.model import Model, does

NO_KEY = "ERR no such key"
SAME_OBJECT = "ERR source and destination objects are the same"


def string(model: Model, key: Key) -> bytes | None:
    value = model.values.value(key)
    if isinstance(value, Stream):
        raise Refused(WRONG_TYPE)
    return value


# ------------------------------------------------------------------------------------ strings


@does("get")
def get(model: Model, client: ClientModel, words: Request) -> Answer:
    return string(model, (client.db, words[1]))


@does("set")
def set_(model: Model, client: ClientModel, words: Request) -> Answer:
    key, options = (client.db, words[1]), words[3:]
    was = model.values.value(key)
    if (b"NX" in options and was is not None) or (b"XX" in options and was is None):
        return None
    model.values.put(key, words[2], keep_expiry=b"KEEPTTL" in options)
    if b"PX" in options:
        model.values.set_expiry(key, model.state.now_ms + int(options[options.index(b"PX") + 1]))
    return OK


@does("append")
def append(model: Model, client: ClientModel, words: Request) -> Answer:
    key = client.db, words[1]
    value = (string(model, key) or b"") + words[2]
    model.values.put(key, value, keep_expiry=True)
    return len(value)


@does("incr")
def incr(model: Model, client: ClientModel, words: Request) -> Answer:
    key = client.db, words[1]
    value = string(model, key) or b"0"
    if value != b"%d" % int(value if value.isdigit() else 0):
        raise Refused("ERR value is not an integer or out of range")
    model.values.put(key, b"%d" % (int(value) + 1), keep_expiry=True)
    return int(value) + 1


# ------------------------------------------------------------------------------------ expiry


@does("pexpire")
def pexpire(model: Model, client: ClientModel, words: Request) -> Answer:
    return expire_at(model, (client.db, words[1]), model.state.now_ms + int(words[2]))


@does("pexpireat")
def pexpireat(model: Model, client: ClientModel, words: Request) -> Answer:
    return expire_at(model, (client.db, words[1]), int(words[2]))


def expire_at(model: Model, key: Key, at_ms: int) -> int:
    if model.values.value(key) is None:
        return 0
    if at_ms <= model.state.now_ms:
        model.values.delete(key)
    else:
        model.values.set_expiry(key, at_ms)
    return 1


@does("persist")
def persist(model: Model, client: ClientModel, words: Request) -> Answer:
    key = client.db, words[1]
    if model.values.value(key) is None or key[1] not in model.data.expiries[key[0]]:
        return 0
    model.values.set_expiry(key, 0)
    return 1


@does("pttl")
def pttl(model: Model, client: ClientModel, words: Request) -> Answer:
    key = client.db, words[1]
    if model.values.value(key) is None:
        return -2
    at_ms = model.data.expiries[key[0]].get(key[1])
    return -1 if at_ms is None else at_ms - model.state.now_ms


# ------------------------------------------------------------------------------------ keys


@does("del")
def del_(model: Model, client: ClientModel, words: Request) -> Answer:
    gone = 0
    for key in [(client.db, name) for name in words[1:]]:
        if model.values.value(key) is not None:
            model.values.delete(key)
            gone += 1
    return gone


@does("exists")
def exists(model: Model, client: ClientModel, words: Request) -> Answer:
    return sum(model.values.value((client.db, name)) is not None for name in words[1:])


@does("flushdb")
def flushdb(model: Model, client: ClientModel, words: Request) -> Answer:
    return flush(model, [client.db])


@does("flushall")
def flushall(model: Model, client: ClientModel, words: Request) -> Answer:
    return flush(model, list(range(len(model.data.databases))))


def flush(model: Model, numbers: list[int]) -> Answer:
    for number in numbers:
        for name in model.data.databases[number]:
            model.values.note_change((number, name))
        model.data.clear(number)
        for key in model.waits.keys(number):
            model.waits.mark_ready(key)
    return OK


@does("tpolicy")
def tpolicy(model: Model, client: ClientModel, words: Request) -> Answer:
    """TPOLICY key [MAXLEN n] [MAXAGE ms] [MAXBYTES n] [EXACT | APPROX]"""
    stream = model.values.stream((client.db, words[1]))
    if stream is None:
        raise Refused(NO_KEY)
    length, age_ms, size, exact = stream.policy or (0, 0, 0, False)
    if len(words) == 2:
        how = b"exact" if exact else b"approx"
        names = [b"maxlen", length, b"maxage", age_ms, b"maxbytes", size, b"trim", how]
        return None if stream.policy is None else Fields(names)
    length = int(words[words.index(b"MAXLEN") + 1]) if b"MAXLEN" in words else length
    age_ms = int(words[words.index(b"MAXAGE") + 1]) if b"MAXAGE" in words else age_ms
    size = int(words[words.index(b"MAXBYTES") + 1]) if b"MAXBYTES" in words else size
    exact = (exact or b"EXACT" in words) and b"APPROX" not in words
    stream.policy = (length, age_ms, size, exact) if length or age_ms or size else None
    model.log.keep_policy((client.db, words[1]), stream)
    return OK


@does("rename", "renamenx")
def rename(model: Model, client: ClientModel, words: Request) -> Answer:
    key, new_key = (client.db, words[1]), (client.db, words[2])
    only_new = words[0] == b"RENAMENX"
    if model.values.value(key) is None:
        raise Refused(NO_KEY)
    if key == new_key:
        return 0 if only_new else OK
    if model.values.value(new_key) is not None and only_new:
        return 0
    move_value(model, key, new_key)
    return 1 if only_new else OK


def move_value(model: Model, key: Key, new_key: Key) -> None:
    for one in (key, new_key):
        model.values.note_change(one)
    model.values.leave_key(key)
    model.data.move(*key, *new_key)
    for one in (key, new_key):
        model.waits.mark_ready(one)


@does("move")
def move(model: Model, client: ClientModel, words: Request) -> Answer:
    key, new_key = (client.db, words[1]), (int(words[2]), words[1])
    if key == new_key:
        raise Refused(SAME_OBJECT)
    if model.values.value(key) is None or model.values.value(new_key) is not None:
        return 0
    move_value(model, key, new_key)
    return 1


@does("copy")
def copy(model: Model, client: ClientModel, words: Request) -> Answer:
    """COPY key new-key DB number [REPLACE]"""
    key, new_key = (client.db, words[1]), (int(words[4]), words[2])
    if key == new_key:
        raise Refused(SAME_OBJECT)
    if model.values.value(key) is None:
        return 0
    if model.values.value(new_key) is not None and b"REPLACE" not in words:
        return 0
    model.values.note_change(new_key)
    model.data.duplicate(*key, *new_key, model.values.new_incarnation())
    made: Value = model.data.databases[new_key[0]][new_key[1]]
    if isinstance(made, Stream):
        for group in made.groups.values():
            group.last_used_ms = model.state.steady_ms
    model.waits.mark_ready(new_key)
    return 1


@does("swapdb")
def swapdb(model: Model, client: ClientModel, words: Request) -> Answer:
    first, second = int(words[1]), int(words[2])
    if first == second:
        return OK
    for watcher in model.watchers.values():
        for number, name in watcher.watches:
            if number in (first, second):
                # An expired key does not exist, so its move or its removal is not a change.
                model.values.value((first, name))
                model.values.value((second, name))
    databases = model.data.databases
    for name in {*databases[first], *databases[second]}:
        model.values.note_change((first, name))
        model.values.note_change((second, name))
    for number in (first, second):
        for name in databases[number]:
            model.values.leave_key((number, name))
    model.data.swap(first, second)
    for number in (first, second):
        for key in model.waits.keys(number):
            model.waits.mark_ready(key)
    return OK

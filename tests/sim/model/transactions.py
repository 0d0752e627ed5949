"""Transactions: MULTI, EXEC, DISCARD, WATCH, UNWATCH."""

from __future__ import annotations

from tests.sim.model.answers import NULL_ARRAY, OK, OUT_OF_MEMORY, Answer, Refused
from tests.sim.model.clients import ClientModel, Request, Waiter
from tests.sim.model.model import WRITES, Model, does, needs_memory


@does("multi")
def multi(model: Model, client: ClientModel, words: Request) -> Answer:
    if client.queue is not None:
        raise Refused("ERR MULTI calls can not be nested")
    client.queue = []
    return OK


@does("exec")
def exec_(model: Model, client: ClientModel, words: Request) -> Answer:
    if client.queue is None:
        raise Refused("ERR EXEC without MULTI")
    queue, failed = client.queue, client.queue_failed
    changed = any(model.values.mark_of(key) != mark for key, mark in client.watches.items())
    leave(client)
    if failed:
        raise Refused("EXECABORT Transaction discarded because of previous errors.")
    if changed:
        return NULL_ARRAY
    try:
        for one in queue:
            if one[0].decode().lower() in WRITES:
                model.check_writable(one)
    except Refused as refusal:
        raise Refused(f"EXECABORT Transaction discarded because of: {refusal}") from None
    if model.state.memory_full and any(map(needs_memory, queue)):
        raise Refused(f"EXECABORT Transaction discarded because of: {OUT_OF_MEMORY}")
    answers = []
    for request in queue:
        try:
            model.check_permission(client, request, at_exec=True)
            answer = model.outcome(client, request, in_queue=False)
        except Refused as refusal:
            answer = refusal
        answers.append(answer.timeout_answer() if isinstance(answer, Waiter) else answer)
    return answers


@does("discard")
def discard(model: Model, client: ClientModel, words: Request) -> Answer:
    if client.queue is None:
        raise Refused("ERR DISCARD without MULTI")
    leave(client)
    return OK


def leave(client: ClientModel) -> None:
    client.queue, client.queue_failed = None, False
    client.watches.clear()


@does("watch")
def watch(model: Model, client: ClientModel, words: Request) -> Answer:
    if client.queue is not None:
        raise Refused("ERR WATCH inside MULTI is not allowed")
    model.watchers[client.number] = client
    for key in [(client.db, name) for name in words[1:]]:
        if key not in client.watches:
            client.watches[key] = model.values.mark_of(key)
    return OK


@does("unwatch")
def unwatch(model: Model, client: ClientModel, words: Request) -> Answer:
    client.watches.clear()
    return OK

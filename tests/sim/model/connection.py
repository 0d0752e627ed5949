"""Connections and the process: PING, SELECT, AUTH, ACL, CLIENT, CONFIG, SAVE."""

from __future__ import annotations

from tests.sim import users
from tests.sim.model.answers import ANY, OK, Answer, Refused, Status
from tests.sim.model.clients import ClientModel, Request
from tests.sim.model.model import Model, does

UNBLOCKED = "UNBLOCKED client unblocked via CLIENT UNBLOCK"


@does("ping")
def ping(model: Model, client: ClientModel, words: Request) -> Answer:
    return Status("PONG")


@does("select")
def select(model: Model, client: ClientModel, words: Request) -> Answer:
    client.db = int(words[1])
    return OK


@does("config")
def config(model: Model, client: ClientModel, words: Request) -> Answer:
    return OK


@does("save", "bgsave", "bgrewriteaof")
def save(model: Model, client: ClientModel, words: Request) -> Answer:
    return ANY


@does("auth")
def auth(model: Model, client: ClientModel, words: Request) -> Answer:
    client.is_limited = True
    return OK


@does("acl")
def acl_setuser(model: Model, client: ClientModel, words: Request) -> Answer:
    model.set_rules(users.parsed(words))
    return OK


@does("client")
def client_unblock(model: Model, client: ClientModel, words: Request) -> Answer:
    """CLIENT UNBLOCK number [TIMEOUT | ERROR]"""
    waiter = model.waits.of(int(words[2]))
    if waiter is None:
        return 0
    if b"ERROR" in words:
        model.end_wait(waiter, Refused(UNBLOCKED))
    else:
        model.timeout(waiter)
    return 1

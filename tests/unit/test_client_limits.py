"""Limits of the clients of a user: exempt users, and the measurement."""

from __future__ import annotations

import logging
import random
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.server.client_limits import LINES_PER_S, ClientLimits
from millstream.server.config.directives import Config
from millstream.server.config.kinds import UserLimit


def limits(due: list[Any], **users: UserLimit) -> ClientLimits:
    config = Config()
    config.user_limits = {name.replace("others", "*"): limit for name, limit in users.items()}
    return ClientLimits(config, {}, lambda client: None, lambda s, callback: due.append(callback))


def test_a_user_with_a_line_without_limits_is_exempt() -> None:
    """`*` is the limit of those without a line."""
    one: Any = limits([], admin=UserLimit(0, 0), others=UserLimit(1, 0))
    clients = one._by_id
    users = [SimpleNamespace(name=name) for name in (b"admin", b"app")]
    for number, user in enumerate(users):
        clients[number] = SimpleNamespace(id=number, user=user, authenticated=True)
    assert one.refusal(users[0]) is None
    assert "'app': user-limits allows 1" in one.refusal(users[1])


class Walked(dict[int, Any]):
    """A table of clients that counts how often all of them are looked at."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()


def test_logins_do_not_look_at_all_clients() -> None:
    """The numbers are those of a count of all clients, whatever clients do."""
    one: Any = limits([], others=UserLimit(3, 0))
    one._by_id = clients = Walked()
    users = [SimpleNamespace(name=b"%d" % number) for number in range(4)]
    chance = random.Random(5)
    for number in range(2000):
        client = clients.get(chance.randrange(20))
        if client is None:
            client = SimpleNamespace(id=chance.randrange(20), user=users[0], authenticated=True)
            clients[client.id] = client
        elif chance.random() < 0.3:
            del clients[client.id]
        else:
            client.user, client.authenticated = chance.choice(users), chance.random() < 0.8
        one.note(client)
        if number >= 1000:  # from then on, a limit asks
            user = chance.choice(users)
            count = sum(c.user is user and c.authenticated for c in dict.values(clients))
            assert (one.refusal(user) is None) == (count < 3)
    assert clients.walks == 1


def test_measuring_continues_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    due: list[Any] = []
    one = limits(due, app=UserLimit(0, 1))
    one.update()

    def fail(*_: object) -> Any:
        raise MemoryError
        yield

    with monkeypatch.context() as patch:
        patch.setattr(one, "_measure", fail)
        with pytest.raises(MemoryError):
            due.pop()()
    due.pop()()
    assert len(due) == 1


def test_closed_clients_are_named_and_the_others_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one: Any = limits([])
    count = LINES_PER_S + 5
    for number in range(count):
        address = f"10.0.0.{number}:1"
        one._by_id[number] = SimpleNamespace(id=number, address=address, no_evict=False, feed=None)
    sizes = [(1000, client) for client in one._by_id.values()]
    one._kill = lambda client: one._by_id.pop(client.id)
    now_s = [0.0]
    one._line_limit._now_s = lambda: now_s[0]
    with caplog.at_level(logging.WARNING):
        assert one._shrink(sizes, 1, "all clients together", "maxmemory-clients") == count
        now_s[0] = 1.0
        one.tick_second()
        one.tick_second()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == LINES_PER_S + 1
    assert lines[0].startswith("closing client 10.0.0.0:1, which takes 1000 bytes")
    assert lines[-1] == "closed 5 more clients because of limits of memory"

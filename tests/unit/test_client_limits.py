"""Limits of the clients of a user: exempt users, and the measurement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.server.client_limits import ClientLimits
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
        clients[number] = SimpleNamespace(user=user, authenticated=True)
    assert one.refusal(users[0]) is None
    assert "'app': user-limits allows 1" in one.refusal(users[1])


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

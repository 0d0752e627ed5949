"""Signals to stop: the save before the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.errors import CommandError
from millstream.server import life
from millstream.server.config.directives import Config
from millstream.server.life import AGAIN_S, Shutdown


@pytest.mark.parametrize(("pause_s", "saves"), [(1, 1), (AGAIN_S + 1, 2)])
def test_a_later_signal_tries_to_save_again(
    monkeypatch: pytest.MonkeyPatch, pause_s: int, saves: int
) -> None:
    """A signal soon after a failed save stops without the data."""
    tries: list[object] = []
    clock = SimpleNamespace(now_s=1000.0)
    parts: Any = SimpleNamespace(
        loading=False,
        time=lambda: clock.now_s,
        pauses=SimpleNamespace(resume_writes=lambda name: None),
        refuse_new=lambda: None,
    )

    def save(_: object) -> None:
        tries.append(clock.now_s)
        if len(tries) == 1:
            raise CommandError("ERR no directory")

    monkeypatch.setattr(life, "save_anyway", save)
    config = Config(appendonly=False, shutdown_timeout=0, shutdown_on_sigterm="save")
    shutdown = Shutdown(config, parts, parts, parts, parts, parts)
    shutdown.stop_by_signal("SIGUSR2")
    assert not shutdown.requested.is_set()
    clock.now_s += pause_s
    shutdown.stop_by_signal("SIGTERM")
    assert shutdown.requested.is_set()
    assert len(tries) == saves

"""The attacks of tests/wire/hostile.py, small: after each the server answers, those who were there
before it too, and its memory has stayed within bounds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.server import Server
from tests.wire.hostile import ATTACKS, DIRECTIVES, SMALL, Attack, ready, watched


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("hostile") / "data", DIRECTIVES).start()
    ready(server, SMALL)
    yield server
    server.kill()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_others_are_served_and_memory_stays_bounded(besieged: Server, attack: Attack) -> None:
    seen = watched(attack, besieged, SMALL)
    assert seen.grown_bytes <= attack.most_bytes(SMALL)
    assert besieged.is_alive()
    assert "Traceback" not in besieged.log

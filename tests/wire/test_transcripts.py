"""Plays every section of transcripts/ against a live server. The format: support/transcript.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.effort import TIMES
from tests.support.server import RESTART_WAYS, Server
from tests.support.transcript import Player, Section, of_each_file, play_all, read_folder

SECTIONS = read_folder(Path(__file__).parent / "transcripts")
CONVERSATIONS = of_each_file(one for one in SECTIONS if "@restart" not in one.tags)
RESTARTING = [one for one in SECTIONS if "@restart" in one.tags]
# The first and the third read the journal, the others a snapshot.
BY_TURNS = (RESTART_WAYS[:1] + RESTART_WAYS[2:3], RESTART_WAYS[1:2] + RESTART_WAYS[3:])


def ways_to_restart() -> list[object]:
    """Two ways for each section, by turns; with many examples all of them."""
    return [
        pytest.param(section, way, id=f"{section.label}[{way}]")
        for number, section in enumerate(RESTARTING)
        for way in (RESTART_WAYS if TIMES > 1 else BY_TURNS[number % 2])
    ]


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations_of_a_file(name: str, server: Server) -> None:
    play_all(CONVERSATIONS[name], server)


@pytest.mark.parametrize(("section", "way"), ways_to_restart())
def test_survives_restart(section: Section, way: str, durable_server: Server) -> None:
    Player(section, durable_server, way=way).play()

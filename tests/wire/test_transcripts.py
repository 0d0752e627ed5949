"""Plays every section of transcripts/ against a live server. The format: support/transcript.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.server import RESTART_WAYS, Server
from tests.support.transcript import Player, Section, read_folder

SECTIONS = read_folder(Path(__file__).parent / "transcripts")


def _plays(restarting: bool) -> list[object]:
    plays: list[object] = []
    for section in SECTIONS:
        if ("@restart" in section.tags) != restarting:
            continue
        if restarting:
            ways: dict[str, object] = {way: way for way in RESTART_WAYS}
        else:
            ways = {f"RESP{protocol}": protocol for protocol in section.protocols}
        plays += [
            pytest.param(section, way, id=f"{section.label}[{name}]") for name, way in ways.items()
        ]
    return plays


@pytest.mark.parametrize(("section", "protocol"), _plays(restarting=False))
def test_conversation(section: Section, protocol: int, server: Server) -> None:
    Player(section, server, protocol).play()


@pytest.mark.parametrize(("section", "way"), _plays(restarting=True))
def test_survives_restart(section: Section, way: str, durable_server: Server) -> None:
    Player(section, durable_server, way=way).play()

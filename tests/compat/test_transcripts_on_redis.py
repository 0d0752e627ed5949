"""Sections of transcripts with the tag `@redis` are also true of a real redis-server.

So those sections have the real replies of Redis, and the player is shown to work.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.server import Server
from tests.support.transcript import Player, Section, read_folder

FOLDER = Path(__file__).parent.parent / "wire" / "transcripts"
SECTIONS = [section for section in read_folder(FOLDER) if "@redis" in section.tags]


@pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.label)
def test_real_redis_sends_the_same_replies(
    section: Section, protocol: int, redis_server: Server
) -> None:
    if protocol in section.protocols:
        Player(section, redis_server, protocol).play()

"""Sections of transcripts with the tag `@redis` are also true of a real redis-server.

So those sections have the real replies of Redis, and the player is shown to work.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.server import Server
from tests.support.transcript import of_each_file, play_all, read_folder

FOLDER = Path(__file__).parent.parent / "wire" / "transcripts"
FILES = of_each_file(section for section in read_folder(FOLDER) if "@redis" in section.tags)


@pytest.mark.parametrize("name", FILES)
def test_real_redis_sends_the_same_replies(name: str, redis_server: Server) -> None:
    play_all(FILES[name], redis_server)

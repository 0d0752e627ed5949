"""The redis-cli sessions in docs/commands and in guides are run as the README's are, each page on
its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.server import Server
from tests.wire.test_readme import Ids, ask, exchanges

FOLDER = Path(__file__).parents[2] / "docs" / "commands"
SESSION = re.compile(r"^```redis-cli\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GUIDES = ("writers.md", "delivery.md")
SESSIONS = {
    page.stem: "".join(found)
    for page in [*sorted(FOLDER.glob("*.md")), *map(FOLDER.parent.joinpath, GUIDES)]
    if (found := SESSION.findall(page.read_text()))
}


@pytest.mark.parametrize("name", SESSIONS)
def test_the_session_of_a_command(server: Server, name: str) -> None:
    ids = Ids()
    for command, printed in exchanges(SESSIONS[name]):
        reply = ask(server, ids.put_in(command))
        assert ids.same(printed, reply), f"{command}\n{reply}"

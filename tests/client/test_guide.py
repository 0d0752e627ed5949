"""The sessions in docs/client.md run as they stand, one after the other."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from tests.support.server import Server

GUIDE = Path(__file__).parents[2] / "docs" / "client.md"
SESSION = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_sessions_of_the_guide_run(server: Server) -> None:
    sessions = SESSION.findall(GUIDE.read_text())
    assert len(sessions) > 7
    text = "".join(sessions).replace("6455", str(server.port))

    test = doctest.DocTestParser().get_doctest(text, {}, GUIDE.name, None, 0)
    printed: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=printed.append, clear_globs=False)
    test.globs["ms"].close()
    assert "".join(printed) == ""

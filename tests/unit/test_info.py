"""The text of INFO is that of the fields of this moment, whatever the last INFO showed."""

from __future__ import annotations

import random

from millstream.server.monitor.info import SectionText


def plain(fields: dict[str, object]) -> str:
    return "# Title\r\n" + "".join(f"{name}:{value}\r\n" for name, value in fields.items())


def test_a_section_shows_its_fields_after_any_changes() -> None:
    source, text = random.Random(1), SectionText("Title")
    fields: dict[str, object] = {}
    for _ in range(500):
        name = source.choice("abcdef")
        if source.random() < 0.2:
            fields.pop(name, None)
        else:
            fields[name] = source.randrange(3)
        assert text.update(fields) == plain(fields)


def test_a_section_is_not_changed_by_fields_that_are_reused() -> None:
    text = SectionText("Title")
    fields: dict[str, object] = {"a": 1, "b": "x"}
    assert text.update(fields) == plain(fields)
    fields["b"] = "y"
    assert text.update(fields) == plain(fields)
    assert text.update({}) == plain({})

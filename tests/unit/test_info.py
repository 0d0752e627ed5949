"""The text of INFO has the present values, independent of the last INFO."""

from __future__ import annotations

import random

from millstream.server.monitor.info_lines import fields_of, lines, part_of


def plain(fields: dict[str, object]) -> str:
    return "".join(f"{name}:{value}\r\n" for name, value in fields.items())


def test_lines_show_their_values_after_any_changes() -> None:
    source, form = random.Random(1), lines("a", "b:%.2f", "c:0%%", "d")
    for _ in range(500):
        a, b, d = source.randrange(3), source.randrange(3) / 2, source.choice("xyz")
        assert form.text((a, b, d)) == f"a:{a}\r\nb:{b:.2f}\r\nc:0%\r\nd:{d}\r\n"


def test_names_may_differ_from_time_to_time() -> None:
    source = random.Random(2)
    fields: dict[str, object] = {}
    for _ in range(500):
        name = source.choice(("a", "b", "c:d", "%s", "100%"))
        if source.random() < 0.2:
            fields.pop(name, None)
        else:
            fields[name] = source.randrange(3)
        form, values = part_of(fields)
        assert form.text(values) == plain(fields)


def test_fields_keep_their_order_and_whole_numbers() -> None:
    form = lines("a", "b:%.2f", "c:0", "d")
    found = fields_of([(form, (1, 0.5, "x")), part_of({"e": -2, "f": "007", "g": "h:i"})])
    assert list(found.items()) == [
        ("a", 1), ("b", "0.50"), ("c", 0), ("d", "x"), ("e", -2), ("f", "007"), ("g", "h:i"),
    ]  # fmt: skip

"""The fields of INFO are read back from its text."""

from __future__ import annotations

from millstream.server.monitor.info import fields_of
from millstream.server.monitor.info_lines import Lines


def test_fields_keep_their_order_and_whole_numbers() -> None:
    text = "a:1\r\nb:0.50\r\nc:0\r\nd:x\r\ne:-2\r\nf:007\r\ng:h:i\r\n"
    assert list(fields_of(text).items()) == [
        ("a", 1), ("b", "0.50"), ("c", 0), ("d", "x"), ("e", -2), ("f", "007"), ("g", "h:i"),
    ]  # fmt: skip


def test_kept_lines_always_show_the_present_values() -> None:
    lines = Lines("name:%s", "constant:0", "count:%d", "share:%.2f%%")
    values = [("a", 1, 0.5), ("a", 1, 0.5), ("b", 1, 0.5), ("b", 2, 0.5), ("a", 1, 0.5)]
    for name, count, share in values:
        text = lines.text(name, count, share)
        assert text == f"name:{name}\r\nconstant:0\r\ncount:{count}\r\nshare:{share:.2f}%\r\n"

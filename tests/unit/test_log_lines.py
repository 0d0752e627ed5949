"""The readable log: one record is one line, with any words of clients."""

from __future__ import annotations

import json
import logging
import time

import pytest

from millstream.server.monitor.log import JsonFormat, TextFormat


def line(message: str) -> str:
    record = logging.LogRecord("millstream", logging.INFO, "", 0, "%s", (message,), None)
    return TextFormat().format(record).partition("notice  ")[2]


def test_a_line_has_local_time_and_its_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    record = logging.LogRecord("millstream", logging.INFO, "", 0, "text", (), None)
    record.created = 1_769_851_812.4816
    try:
        monkeypatch.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        assert TextFormat().format(record) == "2026-01-31 15:00:12.481+05:30 notice  text"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("of writer 'till-1 ü'", "of writer 'till-1 ü'"),
        (
            "a\r\n2031-01-01 00:00:00.000 notice  forged",
            r"a\r\n2031-01-01 00:00:00.000 notice  forged",
        ),
        ("\x1b[31mred\x00\x7f", r"\x1b[31mred\x00\x7f"),
        ("a\u2028b\x85c", r"a\u2028b\x85c"),
        (b"\xff".decode("utf-8", "surrogateescape"), r"\udcff"),
    ],
)
def test_a_message_is_one_line(message: str, shown: str) -> None:
    assert line(message) == shown


def test_one_of_several_processes_is_named() -> None:
    record = logging.LogRecord("millstream", logging.WARNING, "", 0, "text", (), None)
    assert TextFormat("node 0001").format(record).endswith(" warning [node 0001] text")
    found, single = (json.loads(JsonFormat(name).format(record)) for name in ("node 0001", ""))
    assert found == {**single, "process": "node 0001"}
    assert "process" not in single


def test_a_traceback_follows_on_separate_lines() -> None:
    try:
        raise ValueError("why")
    except ValueError as problem:
        record = logging.LogRecord("millstream", logging.WARNING, "", 0, "failed", (), None)
        record.exc_info = (type(problem), problem, problem.__traceback__)
    first, *rest = TextFormat().format(record).splitlines()
    assert first.endswith("warning failed")
    assert rest[-1] == "ValueError: why"

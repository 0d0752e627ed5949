"""ACL LOG: equal refusals are one entry, the number and the size of entries are bounded."""

from __future__ import annotations

from millstream.commands.access.denial_log import NAME_MAX_BYTES, REPEAT_MS, DenialLog


def note(log: DenialLog, subject: bytes, now_ms: int = 0, user: bytes = b"u") -> None:
    log.note("key", "toplevel", subject, user, f"id={now_ms}", now_ms)


def test_equal_refusals_are_counted() -> None:
    log = DenialLog()
    note(log, b"a", 1)
    note(log, b"b", 2)
    note(log, b"a", 3)
    newest, other = log.newest(10)
    assert (newest.subject, newest.count, newest.created_ms, newest.last_ms) == (b"a", 2, 1, 3)
    assert newest.client_line == "id=3"
    assert (other.subject, other.count) == (b"b", 1)
    note(log, b"a", 4 + REPEAT_MS)
    note(log, b"a", 5 + REPEAT_MS, user=b"v")
    assert [entry.count for entry in log.newest(10)] == [1, 1, 2, 1]
    assert log.counts["key"] == 5


def test_entries_are_bounded() -> None:
    log = DenialLog(max_len=3)
    for number in range(10):
        note(log, b"%d" % number)
    assert [entry.subject for entry in log.newest(10)] == [b"9", b"8", b"7"]
    assert [entry.number for entry in log.newest(2)] == [9, 8]
    assert log.newest(-1) == []
    log.resize(0)
    note(log, b"x")
    assert log.newest(10) == []
    assert log.counts["key"] == 11


def test_long_names_are_cut() -> None:
    log = DenialLog()
    note(log, b"k" * 2000, user=b"n" * 2000)
    (entry,) = log.newest(1)
    assert entry.subject == b"k" * NAME_MAX_BYTES + b"... (976 more bytes)"
    assert len(entry.user) < 1100

"""The slow log and the latency monitor: kept, shortened and dropped records."""

from __future__ import annotations

from millstream.commands.admin.monitoring import age_text, graph
from millstream.commands.runtime.context import Session
from millstream.server.config.directives import Config
from millstream.server.monitor.info import latency_fields, percentile_us
from millstream.server.monitor.latency import SAMPLES, LatencyMonitor
from millstream.server.monitor.secrets import without_secrets
from millstream.server.monitor.slowlog import MAX_WORDS, Slowlog, cut

NOW_MS = 1_700_000_000_123


def test_entries_are_newest_first_and_numbered() -> None:
    log = Slowlog(threshold_us=0)
    client = Session(7, "127.0.0.1:5000")
    client.name = b"me"
    for number in range(3):
        log.note(NOW_MS, 10 + number, [b"GET", b"%d" % number], client)
    newest, *others = log.entries(-1)
    assert tuple(newest) == (2, 1_700_000_000, 12, [b"GET", b"2"], b"127.0.0.1:5000", b"me")
    assert [entry.number for entry in others] == [1, 0]
    assert len(log.entries(2)) == 2
    log.clear()
    assert len(log) == 0
    log.note(NOW_MS, 1, [b"PING"], None)
    assert log.entries(1)[0].number == 3  # numbers continue


def test_the_threshold() -> None:
    log = Slowlog(threshold_us=100)
    log.note(NOW_MS, 99, [b"PING"], None)
    log.note(NOW_MS, 100, [b"PING"], None)
    log.threshold_us = -1
    log.note(NOW_MS, 10**9, [b"PING"], None)
    assert len(log) == 1


def test_no_more_than_max_len() -> None:
    log = Slowlog(max_len=2, threshold_us=0)
    for number in range(5):
        log.note(NOW_MS, number, [b"PING"], None)
    assert [entry.number for entry in log.entries(-1)] == [4, 3]
    log.resize(0)
    log.note(NOW_MS, 5, [b"PING"], None)
    assert len(log) == 0


def test_long_requests_are_cut() -> None:
    exactly = [b"%d" % number for number in range(MAX_WORDS)]
    assert cut(exactly) == exactly
    assert cut([*exactly, b"x"]) == [*exactly[:-1], b"... (2 more arguments)"]
    assert cut([b"A" * 128]) == [b"A" * 128]
    assert cut([b"A" * 1024]) == [b"A" * 128 + b"... (896 more bytes)"]


def test_passwords_stay_out() -> None:
    hidden = b"(redacted)"
    cases: list[tuple[list[bytes], list[bytes]]] = [
        ([b"AUTH", b"pw"], [b"AUTH", hidden]),
        ([b"auth", b"default", b"pw"], [b"auth", hidden, hidden]),
        (
            [b"HELLO", b"3", b"auth", b"default", b"pw", b"SETNAME", b"x"],
            [b"HELLO", b"3", b"auth", hidden, hidden, b"SETNAME", b"x"],
        ),
        (
            [b"config", b"set", b"hz", b"5", b"RequirePass", b"pw"],
            [b"config", b"set", b"hz", b"5", b"RequirePass", hidden],
        ),
        ([b"Cluster", b"peer", b"s3cret"], [b"Cluster", b"peer", hidden]),
        ([b"config", b"get", b"requirepass"], [b"config", b"get", b"requirepass"]),
        ([b"SET", b"auth", b"x"], [b"SET", b"auth", b"x"]),
        ([b"HELLO", b"3", b"AUTH", b"x"], [b"HELLO", b"3", b"AUTH", b"(redacted)"]),
        ([b"HELLO", b"3", b"AUTH"], [b"HELLO", b"3", b"AUTH"]),
        (
            [b"HELLO", b"3", b"AUTHH", b"u", b"pw", b"SETNAME", b"x"],
            [b"HELLO", b"3", b"AUTHH", hidden, hidden, hidden, hidden],
        ),
        (
            [b"HELLO", b"3", b"setname", b"auth", b"AUTHH", b"u", b"pw"],
            [b"HELLO", b"3", b"setname", b"auth", hidden, hidden, hidden],
        ),
        ([b"HELLO", b"AUTHH", b"u", b"pw"], [b"HELLO", b"AUTHH", hidden, hidden]),
        (
            [b"HELLO", b"3", b"SETNAME", b"x", b"AUTH", b"u", b"pw"],
            [b"HELLO", b"3", b"SETNAME", b"x", b"AUTH", hidden, hidden],
        ),
        (
            [b"ACL", b"DRYRUN", b"u", b"AUTH", b"x"],
            [b"ACL", b"DRYRUN", b"u", b"AUTH", b"(redacted)"],
        ),
        ([b"COMMAND", b"GETKEYS", b"AUTH", b"x"], [b"COMMAND", b"GETKEYS", b"AUTH", b"(redacted)"]),
    ]
    for words, shown in cases:
        assert without_secrets(words) == shown


def test_spikes_of_one_second_are_one() -> None:
    monitor = LatencyMonitor(threshold_ms=10)
    monitor.note("command", NOW_MS, 9)
    assert monitor.latest() == []
    for milliseconds in (20, 50, 30):
        monitor.note("command", NOW_MS, milliseconds)
    monitor.note("command", NOW_MS + 1000, 15)
    monitor.note("fast-command", NOW_MS, 11)
    assert monitor.history("command") == [[1_700_000_000, 50], [1_700_000_001, 15]]
    assert monitor.latest() == [
        ("command", 1_700_000_001, 15, 50),
        ("fast-command", 1_700_000_000, 11, 11),
    ]
    assert monitor.reset(["nosuch", "command", "command"]) == 1
    assert monitor.history("command") == []
    assert monitor.reset([]) == 1


def test_a_series_keeps_its_newest_samples() -> None:
    monitor = LatencyMonitor(threshold_ms=1)
    for second in range(SAMPLES + 40):
        monitor.note("command", NOW_MS + second * 1000, second + 1)
    history = monitor.history("command")
    assert len(history) == SAMPLES
    assert history[0][1] == 41
    assert monitor.latest()[0][3] == SAMPLES + 40


def test_a_threshold_of_zero_notes_nothing() -> None:
    monitor = LatencyMonitor()
    monitor.note("command", NOW_MS, 10**6)
    assert monitor.latest() == []


def test_a_graph_has_a_column_a_sample() -> None:
    text = graph("command", [[100, 10], [160, 40], [170, 20]], 172)
    head, line, *rows = text.splitlines()
    assert head == "command - high 40 ms, low 10 ms (all time high 40 ms)"
    assert set(line) == {"-"}
    assert rows[0] == " #"
    assert rows[3] == "_##"
    assert rows[5:] == ["112", "m2s", " s"]
    assert [age_text(seconds) for seconds in (5, 61, 7200, 200_000)] == ["5s", "1m", "2h", "2d"]


def test_percentiles_are_the_end_of_their_bucket() -> None:
    counts = [50, 49, 0, 1]  # up to 1, 2, 4, 8 microseconds
    assert [percentile_us(counts, share) for share in (0, 50, 50.1, 99, 99.1, 100)] == [
        1, 1, 2, 2, 8, 8,
    ]  # fmt: skip


def test_the_name_of_a_percentile_has_all_its_digits() -> None:
    monitor, config = LatencyMonitor(counts=lambda: {"get": [1]}), Config()
    config.latency_tracking_info_percentiles = (99.99999, 50.0)
    fields = latency_fields(monitor, config)
    assert fields == {"latency_percentiles_usec_get": "p99.99999=1.000,p50=1.000"}

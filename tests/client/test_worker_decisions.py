"""The decisions of a worker, on a group and with a clock that are simulated."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from tests.client.simulated_group import CONSUMER, NEVER, End, World, options
from tests.support.effort import examples

from millstream.client.core.breaker import Breaker
from millstream.client.core.job_requests import REASON_MAX_BYTES, reason_of
from millstream.client.core.options import worker_options
from millstream.client.errors import MillstreamError
from millstream.client.jobs import Dead, Delivery, Retry


def sent(world: World, name: str) -> list[tuple[Any, ...]]:
    """The commands of a name that the server has executed: the time, and the words."""
    return [(when, *words) for when, first, *words in world.group.log if first == name]


def add(world: World, key: str, number: int) -> None:
    world.group.add(key, number)


def test_a_job_is_acknowledged_when_its_handler_returns() -> None:
    world = World(options())
    entries = [world.group.add("jobs", n) for n in range(1, 20)]
    world.stop_at(105)
    world.run_to_the_end()
    assert {entry.ended for entry in entries} == {"acknowledged"}
    assert len(world.begun) == 19
    assert world.work.metrics()["done"] == 19


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_two_reads_wait_where_there_are_two_free_slots(slots: int) -> None:
    world = World(options(concurrency=slots))
    world.run_until(101.5)
    reads = [ask.about.most for ask in world.flights]  # type: ignore[union-attr]
    assert sum(reads) == slots
    assert len(reads) == min(2, slots)


def at_once(_delivery: Delivery) -> End:
    """The end of a short job."""
    return 0.0001, None


def test_results_and_the_next_read_are_one_request() -> None:
    world = World(options(concurrency=20), ends=at_once, network=lambda: (0.0002, None))
    for n in range(1, 1001):
        world.group.add("jobs", n)
    world.run_until(101)
    assert world.work.metrics()["done"] == 1000
    assert world.work.metrics()["requests"] < 110


def test_a_server_that_is_far_away_gets_two_reads() -> None:
    """A read that was sent with results holds the other one back for a moment only."""
    world = World(options(concurrency=20), ends=at_once, network=lambda: (0.2, None))
    for n in range(1, 401):
        world.group.add("jobs", n)
    world.stop_at(110)
    world.run_to_the_end()
    times = [when for when, _ in world.begun]
    assert len(times) == 400
    assert times[-1] < 107  # with one read of 10 at a time, 40 round trips take 108 s


@pytest.mark.parametrize("refused", [0, 1])
def test_a_refusal_concerns_results_or_the_read(refused: int) -> None:
    world = World(options(concurrency=2), ends=at_once, network=lambda: (0.0002, None))
    for n in range(1, 41):
        world.group.add("jobs", n)
    execute = world.group.execute
    error = OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")

    def refusing(words: tuple[Any, ...]) -> Any:
        asks = [f.ask for f in world.flights.values() if len(f.ask.commands) == 2]
        if asks and len(world.begun) >= 10 and words == asks[0].commands[refused].words:
            world.group.execute = execute  # type: ignore[method-assign]
            return error
        return execute(words)

    world.group.execute = refusing  # type: ignore[method-assign]
    world.stop_at(110)
    world.run_to_the_end()
    assert world.group.execute is execute
    assert {entry.ended for entry in world.group.entries.values()} == {"acknowledged"}
    assert {entry.deliveries for entry in world.group.entries.values()} == {1}
    assert world.work.metrics()["done"] == 40


def test_the_last_stream_comes_first_in_every_16th_read() -> None:
    world = World(options(concurrency=1), ("high", "middle", "low"))
    for n in range(1, 200):
        world.group.add("high", n)
        world.group.add("low", n)
    world.run_until(104)
    order = [delivery.key for _, delivery in world.begun]
    assert len(order) > 48
    assert [number for number, key in enumerate(order[:48], 1) if key == "low"] == [16, 32, 48]


def test_a_running_job_is_extended_every_third_of_the_timeout() -> None:
    world = World(options(timeout=30), ends=lambda delivery: (95.0, None))
    entry = world.group.add("jobs", 1)
    world.stop_at(199)
    world.run_to_the_end()
    times = [round(when - 100) for when, *_ in sent(world, "TEXTEND")]
    assert times == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert (entry.ended, entry.deliveries) == ("acknowledged", 1)


def test_a_job_that_cannot_be_extended_is_lost() -> None:
    world = World(options(timeout=30), ends=lambda delivery: (15.0, None))
    entry = world.group.add("jobs", 1)
    world.run_until(105)
    entry.owner = "another"
    world.stop_at(120)
    world.run_to_the_end()
    assert world.begun[0][1].lost
    assert world.work.metrics()["lost"] == 1
    assert entry.ended is None  # neither acknowledged nor given back: it is the other reader's
    assert entry.owner == "another"


def test_an_explicit_extension_is_not_shortened() -> None:
    world = World(options(timeout=3), ends=lambda delivery: (50.0, None))
    entry = world.group.add("jobs", 1)
    world.run_until(102)
    steps = world.work.extend(world.begun[0][1], 600)
    call: Any = next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send(call.command.read(world.group.execute(call.command.words)))
    assert end.value.value is True
    world.run_until(120)
    assert round(entry.due_s) == 702


def test_stop_does_not_wait_for_reads_that_block() -> None:
    world = World(options())
    world.stop_at(100.5)
    world.run_to_the_end()
    assert world.now_s < 100.6  # the reads block for longer
    assert world.group.log[-1][1:3] == ("XGROUP", "DELCONSUMER")


def test_stop_gives_back_what_has_not_begun() -> None:
    world = World(options(concurrency=2), ends=lambda delivery: (20.0, None))
    first = world.group.add("jobs", 1)
    world.run_until(101)
    world.at(101, world.work.stops.stop)  # the read in flight gets one more entry
    world.at(101, lambda: add(world, "jobs", 2))
    world.run_to_the_end()
    second = world.group.entries["jobs", "2-0"]
    assert first.ended == "acknowledged"
    assert (second.owner, second.deliveries, second.ended) == (None, 0, None)
    assert len(world.begun) == 1
    assert any("SILENT" in words for words in sent(world, "TNACK"))


def test_jobs_that_run_after_the_drain_fail_with_a_reason() -> None:
    world = World(options(drain=5, max_deliver=1, dead_letter="d"), ends=lambda _: (NEVER, None))
    world.group.max_deliver = 1
    entry = world.group.add("jobs", 1)
    world.stop_at(101)
    world.run_to_the_end()
    assert 106 <= world.now_s < 110
    assert entry.ended == "dead: the worker was stopped before the handler had ended"
    assert world.abandoned == [world.begun[0][1]]
    assert world.begun[0][1].lost


@pytest.mark.parametrize("drain_ms", range(1000, 2000, 100))
def test_results_on_their_way_are_sent_when_the_worker_leaves(drain_ms: int) -> None:
    """The server does not answer until the drain is over."""
    healthy_s = 100 + drain_ms / 1000
    world = World(
        options(drain=drain_ms / 1000),
        ends=lambda _: (0.2, None),
        network=lambda: (0.1, "request" if 100.2 < world.now_s < healthy_s else None),
    )
    entry = world.group.add("jobs", 1)
    world.stop_at(100.2)
    world.run_to_the_end()
    assert (entry.ended, entry.deliveries) == ("acknowledged", 1)


def test_a_worker_that_was_interrupted_runs_again() -> None:
    world = World(options(), ends=lambda _: (NEVER, None))
    first = world.group.add("jobs", 1)
    world.run_until(101)
    world.start(world.work.abort())
    world.run_to_the_end()
    assert (first.owner, first.ended) == (None, None)
    world.ends = at_once
    world.start(world.work.run(world.work.stops.begin()))
    world.run_until(world.now_s + 5)
    assert first.ended == "acknowledged"


def test_a_handler_that_passes_the_time_limit_fails() -> None:
    world = World(options(time_limit=7, concurrency=1), ends=lambda _: (NEVER, None))
    world.group.max_deliver = 2
    entry = world.group.add("jobs", 1)
    world.run_until(130)
    assert [round(when) for when, _ in world.begun] == [100, 107]
    assert entry.ended == "dead: the handler ran for more than 7 s"


def test_each_result_is_sent_as_what_it_means() -> None:
    errors: dict[str, BaseException | None] = {
        "1-0": None,
        "2-0": ValueError("boom"),
        "3-0": Dead("no such address"),
        "4-0": Retry("busy", delay=60),
        "5-0": KeyError(),
    }
    world = World(options(concurrency=8), ends=lambda d: (0.01, errors[str(d.word)]))
    world.group.backoff_s = 1000
    for n in range(1, 6):
        world.group.add("jobs", n)
    world.stop_at(101)
    world.run_to_the_end()
    ended = [entry.ended for entry in world.group.entries.values()]
    assert ended == ["acknowledged", None, "dead: no such address", None, None]
    nacks = {words[-1]: words[4:-3] for words in sent(world, "TNACK") if words[-1] != "ALL"}
    assert nacks == {
        "2-0": ("FAIL", "REASON", b"boom"),
        "3-0": ("FATAL", "REASON", b"no such address"),
        "4-0": ("FAIL", "DELAY", 60_000, "REASON", b"busy"),
        "5-0": ("FAIL", "REASON", b"KeyError"),
    }
    assert world.work.metrics()["dead"] == 1


def test_the_breaker_waits_1_2_4_up_to_60_seconds() -> None:
    world = World(options(breaker=3, concurrency=3), ends=lambda _: (0.0, ValueError("the outage")))
    for n in range(1, 100):
        world.group.add("jobs", n)
    world.group.backoff_s = 10_000
    world.run_until(100 + 260)
    times = [when for when, _ in world.begun]
    assert len(times) == 3 + 9
    gaps = [round(b - a) for a, b in pairwise(times[2:])]
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_success_closes_the_breaker() -> None:
    breaker = Breaker(2)
    assert not breaker.failed(0)
    assert breaker.failed(0)
    assert (breaker.slots(0.5, 8), breaker.slots(1, 8)) == (0, 1)
    assert not breaker.failed(0.5)  # it began before the wait
    breaker.succeeded()
    assert breaker.slots(1, 8) == 8
    assert not breaker.failed(2)


def test_a_verdict_about_a_job_does_not_open_the_breaker() -> None:
    world = World(options(breaker=3), ends=lambda _: (0.0, Dead("no such address")))
    for n in range(1, 100):
        world.group.add("jobs", n)
    world.run_until(101)
    assert len(world.begun) == 99


@pytest.mark.parametrize("text", ["NOGROUP No such key", "the group has no TIMEOUT: set one"])
def test_a_vanished_group_is_created_where_it_was(text: str) -> None:
    world = World(options())
    world.group.add("jobs", 7)
    world.run_until(101)
    world.group.refusals.append(ResponseError(text))
    world.run_until(104)
    starts = [words[4] for words in sent(world, "TGROUP")]
    assert starts == ["0", "7.0"]
    world.group.add("jobs", 8)
    world.run_until(106)
    assert world.group.entries["jobs", "8-0"].ended == "acknowledged"


def test_an_error_that_may_end_does_not_end_the_worker() -> None:
    world = World(options())
    world.run_until(101)
    world.group.refusals += [
        ResponseError("MISCONF the disk is full"),
        ReadOnlyError("You can't write against a read only replica."),
        OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
    ]
    world.group.add("jobs", 1)
    world.run_until(110)
    assert world.group.entries["jobs", "1-0"].ended == "acknowledged"
    world.group.refusals.append(ResponseError("NOPERM this user has no permissions"))
    with pytest.raises(ResponseError, match="NOPERM"):
        world.run_until(115)


def test_without_configure_the_group_must_have_rules() -> None:
    world = World(options(configure=False, timeout=30))
    world.group.timeout_s = 3
    world.ends = lambda delivery: (2.5, None)
    entry = world.group.add("jobs", 1)
    world.run_until(105)
    assert sent(world, "TGROUP") == []
    assert [round(when) for when, *_ in sent(world, "TEXTEND")] == [101, 102]
    assert entry.ended == "acknowledged"
    other = World(options(configure=False))
    other.group.timeout_s = 0
    with pytest.raises(MillstreamError, match="has no TIMEOUT"):
        other.run_until(101)


def test_a_job_that_returns_to_its_own_worker_continues() -> None:
    """The process was suspended: the entry was due, and the next read of this worker gets it."""
    world = World(options(timeout=30), ends=lambda delivery: (8.0, None))
    entry = world.group.add("jobs", 1)
    world.run_until(101)
    entry.due_s = 0
    world.stop_at(112)
    world.run_to_the_end()
    assert len(world.begun) == 1
    assert (entry.ended, entry.deliveries) == ("acknowledged", 2)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no"), b"no"),
        (ValueError(), b"ValueError"),
        (ValueError("x" * 2000), b"x" * REASON_MAX_BYTES),
        (ValueError("é" * 600), "é".encode() * 512),
        (ValueError("x" + "é" * 600), b"x" + "é".encode() * 511),
        (ValueError("\udcff"), b"\\udcff"),
    ],
    ids=str,
)
def test_a_reason_is_cut_at_a_character(error: Exception, reason: bytes) -> None:
    assert reason_of(error) == reason


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", 0),
        ("timeout", 0),
        ("timeout", 86_401),
        ("timeout", "1"),
        ("backoff", 5),
        ("backoff", [1] * 17),
        ("backoff", [-1]),
        ("max_deliver", -1),
        ("max_deliver", True),
        ("dead_letter", 5),
        ("drain", -1),
        ("breaker", 1.5),
        ("time_limit", 0),
        ("configure", 1),
    ],
)
def test_options_that_are_not_valid_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        options(**{name: value})
    with pytest.raises(ValueError, match="delay"):
        Retry(delay=-1)
    assert worker_options is not None


ERRORS: list[Any] = [None, None, None, ValueError("boom"), Dead("never"), Retry(delay=3)]


@settings(max_examples=examples(25))
@given(seed=st.integers(0, 2**32))
@example(seed=80)  # the server fails while the breaker waits
def test_no_entry_is_forgotten_over_lost_requests_and_failures(seed: int) -> None:
    """`World` checks the number of entries at every step, and that none is delivered too often."""
    chance = Random(seed)
    succeeded: set[tuple[Any, Any]] = set()
    lossy = True

    def ends(delivery: Delivery) -> End:
        error = chance.choice(ERRORS)
        seconds = chance.choice([0.0, 0.01, 0.5, 4.0, NEVER])
        if error is None and seconds < NEVER:
            succeeded.add((delivery.key, delivery.word))
        return seconds, error

    def network() -> tuple[float, str | None]:
        loss = chance.choice(["request", "reply"]) if lossy and chance.random() < 0.1 else None
        return chance.choice([0.001, 0.1]), loss

    concurrency = chance.randint(1, 5)
    given_options = options(
        concurrency=concurrency,
        timeout=3,
        time_limit=chance.choice([None, 2]),
        breaker=chance.choice([0, 3]),
        drain=2,
    )
    world = World(given_options, ("a", "b")[: chance.randint(1, 2)], ends, network)
    world.group.max_deliver = 6
    world.group.backoff_s = chance.choice([0.0, 1.0])
    for number in range(1, chance.randint(5, 40)):
        when_s = 100 + chance.random() * 20
        key = chance.choice("ab") if len(world.work._held) == 2 else "a"
        world.at(when_s, lambda key=key, number=number: add(world, key, number))  # type: ignore[misc]
    world.run_until(140)
    lossy = False
    world.ends = lambda delivery: (succeeded.add((delivery.key, delivery.word)) or 0.01, None)
    world.run_until(240)
    world.stop_at(240)
    world.run_to_the_end()
    for entry in world.group.entries.values():
        assert entry.owner != CONSUMER or entry.ended is not None
        if entry.ended == "acknowledged":
            assert (entry.key, entry.word) in succeeded
        elif entry.ended is None:  # handlers that never end held their slots
            assert len(world.abandoned) > 0 or entry.deliveries == 0

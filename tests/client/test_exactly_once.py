"""Writers and consumers when replies are lost: one entry for each append, no orphan, no loss."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from typing import Any

import pytest
import redis
from tests.client.apis import Api, take
from tests.client.conftest import url_of
from tests.client.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.client import (
    ID,
    FactAlreadyDone,
    InvalidPosition,
    MillstreamError,
    ReservationLost,
)
from millstream.client.core.repeating import Repeater
from millstream.client.core.steps import Call, Sleep, Steps
from millstream.client.core.writing import WriterState

# ---------------------------------------------------------------- appending


def test_an_append_whose_reply_is_lost_adds_one_entry(ms: Any, through: Any, proxy: Proxy) -> None:
    with through.writer("s", "w") as writer:
        for lost in (1, 3):
            proxy.swallowing = [b"XADD"] * lost
            entry_id = writer.append({"n": lost})
            assert [record.id for record in ms.trange("s", entry_id)] == [entry_id]
        assert ms.xlen("s") == 2
        assert writer.metrics()["appended"] == 2
        assert writer.metrics()["repeats"] == 4


def test_appends_are_exactly_once_over_broken_connections(
    ms: Any, through: Any, proxy: Proxy
) -> None:
    proxy.cutting = (0, 700)
    with through.writer("s", "w") as writer:
        wanted = [writer.append({"n": n}) for n in range(60)]
    assert [(record.id, record["n"]) for record in ms.trange("s")] == [
        (entry_id, str(n)) for n, entry_id in enumerate(wanted)
    ]
    assert proxy.connections > 5


def test_an_append_that_is_never_answered_raises_after_retry_for(
    ms: Any, through: Any, proxy: Proxy
) -> None:
    with through.writer("s", "w", retry_for=0.2) as writer:
        proxy.swallowing = [b"XADD"] * 1000
        with pytest.raises(redis.ConnectionError):
            writer.append({"n": 1})
        proxy.swallowing = []
        writer.append({"n": 2})
    assert [record["n"] for record in ms.trange("s")] == ["1", "2"]


def test_a_stream_that_forgets_before_retry_for_is_refused(ms: Any) -> None:
    ms.tappend("s", {"n": 0})
    ms.execute_command("XCFGSET", "s", "IDMP-DURATION", 20)
    for retry_for in (20, 30):
        with (
            ms.writer("s", "w", retry_for=retry_for) as writer,
            pytest.raises(ValueError, match=r"retry_for must be below 20 seconds for 's', not"),
        ):
            writer.append({"n": 1})
    with ms.writer("s", "w", retry_for=19.5) as writer:
        writer.append({"n": 1})
    assert ms.xlen("s") == 2


def test_a_stream_created_by_an_append_is_checked_at_the_next(ms: Any) -> None:
    ms.config_set("stream-idmp-duration", 20)
    try:
        with ms.writer("s", "w") as writer:
            writer.append({"n": 1})
            with pytest.raises(ValueError, match="retry_for must be below 20"):
                writer.append({"n": 2})
    finally:
        ms.config_set("stream-idmp-duration", 100)


def test_no_append_is_repeated_when_the_stream_has_forgotten_it(
    ms: Any, through: Any, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    with through.writer("s", "w", retry_for=30) as writer:
        writer.append({"n": 1})
        writer.append({"n": 2})
        ms.execute_command("XCFGSET", "s", "IDMP-DURATION", 2)
        proxy.swallowing = [b"XADD"] * 1000
        with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
            writer.append({"n": 3})
    assert [record["n"] for record in ms.trange("s")] == ["1", "2", "3"]
    assert "an append to 's' is not repeated" in caplog.text


def test_no_attempt_begins_after_the_time_for_repeats() -> None:
    now_s = 0.0
    begun: list[float] = []

    def attempt() -> Steps[None]:
        begun.append(now_s)
        raise redis.ConnectionError("lost")
        yield

    steps = Repeater(10.0, lambda: now_s).until_answered(attempt)
    with suppress(redis.ConnectionError):
        while True:
            step = next(steps)
            assert isinstance(step, Sleep)
            now_s += step.seconds
    assert begun[-1] == max(begun) == 10.0


def test_a_question_that_takes_long_ends_the_repeats() -> None:
    """The server may have forgotten the append while it did not answer."""
    now_s = 0.0
    writing = WriterState("s", "w", "own", 30, 98, lambda: now_s, None)
    steps = writing.append({"n": 1})
    next(steps)
    step = steps.send(100)  # seconds, for which the stream recognizes a repeat
    assert isinstance(step, Call)
    assert step.command.words[0] == "XADD"
    now_s = 97.9
    assert isinstance(steps.throw(redis.TimeoutError("lost")), Sleep)
    now_s = 97.95
    step = steps.send(None)
    assert isinstance(step, Call)
    assert step.command.words[0] != "XADD"
    now_s = 102.0
    with pytest.raises(redis.TimeoutError):
        steps.send(100)


def test_writers_of_one_name_do_not_mistake_each_others_appends(ms: Any) -> None:
    with ms.writer("s", "w") as one, ms.writer("s", "w") as two:
        for n in range(3):
            one.append({"n": n})
            two.append({"n": n})
    assert ms.xlen("s") == 6


@pytest.mark.parametrize("retry_for", [0, -1, 100, 1e9])
def test_a_wrong_retry_for_is_refused(ms: Any, retry_for: float) -> None:
    with pytest.raises(ValueError, match="retry_for"):
        ms.writer("s", "w", retry_for=retry_for)


@pytest.mark.parametrize("lease", [0, -1, 601, 0.0001])
def test_a_wrong_lease_is_refused(ms: Any, lease: float) -> None:
    with pytest.raises(ValueError, match="lease"):
        ms.writer("s", "w", lease=lease)
    with ms.writer("s", "w") as writer, pytest.raises(ValueError, match="lease"):
        writer.fact(lease=lease)


# ---------------------------------------------------------------- facts


def test_a_fact_is_completed_at_the_end_of_its_block(ms: Any) -> None:
    with ms.writer("s", "w") as writer:
        with writer.fact() as fact:
            assert writer.pending == 1
            fact["n"] = 1
            fact["m"] = 2
            del_copy = dict(fact.items())
            assert del_copy == {"n": 1, "m": 2}
        assert writer.pending == 0
        [record] = ms.trange("s")
        assert (record.id, dict(record)) == (fact.id, {"n": "1", "m": "2"})
        assert writer.position() == fact.id
        fact.complete()  # again: nothing happens
        fact.abort()
        assert ms.xlen("s") == 1
        assert writer.metrics()["completed"] == 1


def test_a_fact_is_aborted_without_fields_and_after_an_exception(ms: Any) -> None:
    with ms.writer("s", "w") as writer:
        with writer.fact():
            pass
        fact = writer.fact()
        with pytest.raises(ZeroDivisionError), fact:
            fact["n"] = 1 / 0
        assert ms.tinfo("s")["reservations"] == 0
        assert ms.xlen("s") == 0
        assert writer.metrics()["aborted"] == 2
        with pytest.raises(ReservationLost):
            fact.complete()
        empty = writer.fact()
        with pytest.raises(ValueError, match="field"):
            empty.complete()
        empty.abort()


def test_facts_have_consecutive_ids(ms: Any) -> None:
    with ms.writer("s", "w") as writer:
        facts = writer.facts(3)
        first = facts[0].id
        assert [fact.id for fact in facts] == [ID(first.ms, first.seq + n) for n in range(3)]
        assert writer.pending == 3
        facts[1]["n"] = 1
        facts[1].complete()
    assert ms.tinfo("s")["reservations"] == 0  # close has given the others up
    assert [record.id for record in ms.trange("s")] == [facts[1].id]


def test_a_takeover_aborts_reservations_of_an_earlier_process(ms: Any) -> None:
    ms.treserve("s", "w", 5)
    ms.treserve("s", "other")
    with ms.writer("s", "w", take_over=True):
        assert ms.tinfo("s")["reservations"] == 1


def test_a_completion_whose_reply_is_lost_succeeds(ms: Any, through: Any, proxy: Proxy) -> None:
    with through.writer("s", "w") as writer:
        proxy.swallowing = [b"TCOMPLETE", b"TCOMPLETE"]
        with writer.fact() as fact:
            fact["n"] = 1
        assert [record.id for record in ms.trange("s")] == [fact.id]
        proxy.swallowing = [b"TABORT"]
        with writer.fact():
            pass
        assert ms.tinfo("s")["reservations"] == 0
        assert writer.metrics()["lost"] == 0


@pytest.mark.parametrize("lost", [1, 3])
def test_a_reservation_whose_reply_is_lost_leaves_no_orphan(
    ms: Any, through: Any, proxy: Proxy, lost: int
) -> None:
    with through.writer("s", "w") as writer:
        kept = writer.fact()
        proxy.swallowing = [b"TRESERVE"] * lost
        fact = writer.fact()
        assert ms.tinfo("s")["reservations"] == 2
        for one in (kept, fact):
            one["n"] = 1
            one.complete()
    assert [record.id for record in ms.trange("s")] == [kept.id, fact.id]


def test_a_reservation_that_fails_leaves_no_orphan_after_close(
    ms: Any, through: Any, proxy: Proxy
) -> None:
    with through.writer("s", "w", retry_for=0.2) as writer:
        proxy.swallowing = [b"TRESERVE"] * 1000
        with pytest.raises(redis.ConnectionError):
            writer.fact()
        proxy.swallowing = []
    assert ms.tinfo("s")["reservations"] == 0


def test_a_reservation_that_runs_too_late_leaves_no_orphan(
    api: Api, durable_server: Server
) -> None:
    """The request is in the socket of a stopped server when the client has given it up."""
    ms = api.connect(url_of(durable_server), timeout=0.3)
    with ms.writer("s", "w", retry_for=20) as writer:
        writer.append({"n": 0})
        durable_server.signal(signal.SIGSTOP)
        waker = threading.Timer(1.0, durable_server.signal, (signal.SIGCONT,))
        waker.start()
        with writer.fact() as fact:
            assert ms.tinfo("s")["reservations"] == 1
            fact["n"] = 1
        waker.join()
        assert ms.tinfo("s")["reservations"] == 0


def test_facts_are_settled_when_connections_are_cut_anywhere(
    ms: Any, through: Any, proxy: Proxy
) -> None:
    proxy.cutting = (0, 900)
    wanted = []
    with through.writer("s", "w") as writer:
        for n in range(40):
            with writer.fact() as fact:
                if n % 4:
                    fact["n"] = n
                    wanted.append((fact.id, str(n)))
            if n % 5 == 0:
                wanted.append((writer.append({"n": f"plain {n}"}), f"plain {n}"))
        assert writer.metrics()["lost"] == 0
    assert ms.tinfo("s")["reservations"] == 0
    assert [(record.id, record["n"]) for record in ms.trange("s")] == wanted


def test_a_heartbeat_renews_leases_once_in_a_third_of_them(ms: Any) -> None:
    def renewals() -> int:
        stats = ms.info("commandstats").get("cmdstat_trenew")
        return int(stats["calls"]) if stats else 0

    before = renewals()
    with ms.writer("s", "w", lease=0.6) as writer:
        writer.heartbeat()
        assert renewals() == before  # there is nothing to renew
        fact = writer.fact()
        for _ in range(10):
            writer.heartbeat()
        assert renewals() == before + 1
        wait_until(lambda: (writer.heartbeat(), renewals())[1], lambda n: n >= before + 6)
        fact["n"] = 1
        fact.complete()  # the lease has been restarted for twice its length
    assert ms.xlen("s") == 1


def test_the_fields_of_a_complete_fact_are_fixed(ms: Any) -> None:
    with ms.writer("s", "w") as writer:
        fact = writer.fact()
        fact["n"] = 1
        fact.complete()
        with pytest.raises(MillstreamError, match="is complete: its fields are fixed"):
            fact["n"] = 2
        with pytest.raises(MillstreamError, match="is complete: its fields are fixed"):
            del fact["n"]
        assert dict(fact) == {"n": 1}


def test_a_fact_whose_lease_is_over_is_lost(ms: Any) -> None:
    with ms.writer("s", "w", lease=0.05) as writer:
        fact = writer.fact()
        fact["n"] = 1
        wait_until(lambda: ms.tinfo("s")["reservations"], lambda count: count == 0)
        with pytest.raises(ReservationLost):
            fact.complete()
        assert writer.pending == 0
        assert writer.metrics()["lost"] == 1


def test_a_fact_that_another_writer_completed_is_success(ms: Any) -> None:
    with ms.writer("s", "w") as writer:
        fact = writer.fact()
        ms.tcomplete("s", "w", fact.id, {"n": 1})
        with pytest.raises(FactAlreadyDone):
            ms.tcomplete("s", "w", fact.id, {"n": 1})
        fact["n"] = 1
        fact.complete()
        assert ms.xlen("s") == 1


# ---------------------------------------------------------------- consumers


def test_consumers_share_the_entries_of_a_group(ms: Any) -> None:
    for n in range(6):
        ms.tappend("s", {"n": n})
    with (
        ms.consumer("s", "g", position="trim_horizon", batch=1, retry=60) as one,
        ms.consumer("s", "g", position="trim_horizon", batch=1, retry=60) as two,
    ):
        found = [next(one)["n"], next(two)["n"], *(record["n"] for record in take(one, 4))]
        assert found == [str(n) for n in range(6)]
        assert one.read(timeout=0.01) is None
        assert next(two) is None


@pytest.mark.parametrize("position", [5, None, "oldest", b"$", {"v": 1}])
def test_a_wrong_position_of_a_group_is_refused(ms: Any, position: Any) -> None:
    with pytest.raises(InvalidPosition):
        ms.consumer("s", "g", position=position)


@pytest.mark.parametrize("options", [{"ttl": -1}, {"retry": -1}, {"expire": -1}, {"batch": 0}])
def test_wrong_options_of_a_consumer_are_refused(ms: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ms.consumer("s", "g", **options)


def test_follow_acknowledges_finished_entries(ms: Any) -> None:
    for n in range(4):
        ms.tappend("s", {"n": n})
    consumer = ms.consumer("s", "g", position="trim_horizon", retry=60)
    found = []
    for record in consumer.follow(ack=True):
        found.append(record["n"])
        if record["n"] == "2":
            break
    assert pending(ms) == 2  # the one of the break, and the one that was not handed out
    assert take(consumer, 1)[0]["n"] == "3"
    consumer.close()
    assert found == ["0", "1", "2"]
    assert pending(ms) == 2


def test_follow_acknowledges_the_last_record_when_it_is_stopped(ms: Any) -> None:
    ms.tappend("s", {"n": 1})
    with ms.consumer("s", "g", position="trim_horizon", retry=60) as consumer:
        for _ in consumer.follow(ack=True):
            consumer.stop()
    assert pending(ms) == 0


def test_an_exception_in_the_loop_acknowledges_nothing(ms: Any) -> None:
    ms.tappend("s", {"n": 1})
    consumer = ms.consumer("s", "g", position="trim_horizon", retry=60)

    def work() -> None:
        for record in consumer.follow(ack=True):
            int(record["n"], 1)

    with pytest.raises(ValueError, match="int"):
        work()
    consumer.close()
    assert pending(ms) == 1


def pending(ms: Any, group: str = "g") -> int:
    return int(ms.xpending("s", group)["pending"])


def test_a_consumer_counts_missed_entries_and_its_lag(ms: Any) -> None:
    with ms.consumer("s", "g", batch=2) as consumer:
        for n in range(6):
            ms.tappend("s", {"n": n})
        assert consumer.lag() == 6
        ms.xtrim("s", maxlen=3, approximate=False)
        assert [record["n"] for record in take(consumer, 3)] == ["3", "4", "5"]
        assert consumer.missed == 1
        assert consumer.metrics()["missed"] == 1
        assert consumer.lag() == 0


def test_a_heartbeat_keeps_a_group_alive(ms: Any) -> None:
    with ms.consumer("s", "g", ttl=0.6) as consumer:
        before = int(ms.info("commandstats")["cmdstat_tread"]["calls"])
        ms.tappend("s", {"n": 1})

        def beats() -> int:
            consumer.heartbeat()
            return int(ms.info("commandstats")["cmdstat_tread"]["calls"]) - before

        wait_until(beats, lambda count: count >= 6)  # twice the group's time to live
        assert take(consumer, 1)[0]["n"] == "1"


def test_a_consumer_with_retry_survives_connections_cut_anywhere(
    ms: Any, through: Any, proxy: Proxy
) -> None:
    wanted = {str(n) for n in range(60)}
    proxy.cutting = (200, 2000)
    consumer = None
    while consumer is None:
        try:
            consumer = through.consumer("s", "g", retry=0.3, batch=5, position="trim_horizon")
        except redis.ConnectionError:
            continue
    for n in range(60):
        ms.tappend("s", {"n": n, "fill": "x" * 30})
    found: set[str] = set()
    for record in consumer.follow(block=0.2, ack=True):
        found.add(record["n"])
        if found == wanted:
            consumer.stop()
    consumer.close()
    assert pending(ms) == 0
    assert proxy.connections > 5


def test_a_consumer_continues_after_its_server_was_killed(api: Api, durable_server: Server) -> None:
    ms = api.connect(url_of(durable_server), timeout=1.0)
    with ms.consumer("s", "g", retry=60, position="trim_horizon") as consumer:
        ms.tappend("s", {"n": 1})
        [record] = take(consumer, 1)
        durable_server.kill()
        durable_server.launch()
        assert consumer.ack(record) == 1
        ms.tappend("s", {"n": 2})
        assert take(consumer, 1)[0]["n"] == "2"


def test_acknowledgements_are_repeated_after_a_lost_reply(
    ms: Any, through: Any, proxy: Proxy
) -> None:
    ms.tappend("s", {"n": 1})
    with through.consumer("s", "g", retry=60, position="trim_horizon") as consumer:
        [record] = take(consumer, 1)
        proxy.swallowing = [b"TACK"]
        assert consumer.ack(record) == 0  # it was acknowledged by the request before
        assert pending(ms) == 0

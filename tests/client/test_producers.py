"""Producers and rows: many entries at once, each exactly once and in order."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from redis.exceptions import ResponseError
from tests.client.conftest import url_of
from tests.client.proxy import Proxy
from tests.pipeline.installing import ROOT
from tests.support.server import Server

from millstream.client import InvalidFields, MillstreamError, Sealed, aio, connect


def numbers(ms: Any, key: str = "s") -> list[int]:
    return [int(record["n"]) for record in ms.trange(key)]


# ---------------------------------------------------------------- producers


def test_entries_are_appended_in_order_and_in_batches(ms: Any) -> None:
    with ms.producer("s", max_batch=100, linger=60) as producer:
        receipts = [producer.append({"n": n}) for n in range(250)]
        producer.flush()
        assert all(receipt.done() and receipt.error is None for receipt in receipts)
        assert [receipt.result() for receipt in receipts[:3]] == [1, 2, 3]
        counts = producer.metrics()
        assert (counts["appended"], counts["batches"], counts["pending"]) == (250, 3, 0)
        producer.append({"n": 250})
    assert numbers(ms) == list(range(251))
    assert ms.tinfo("s")["producers"] == 1


def test_an_entry_is_sent_after_the_linger_without_a_flush(ms: Any) -> None:
    with ms.producer("s", linger=0.01) as producer:
        assert producer.append({"n": 1}).result(timeout=10) == 1
        assert numbers(ms) == [1]


def test_a_receipt_tells_its_end_to_functions(ms: Any) -> None:
    seen: list[int] = []
    with ms.producer("s", linger=60) as producer:
        receipt = producer.append({"n": 1})
        assert "waits" in repr(receipt)
        receipt.add_done_callback(lambda receipt: seen.append(receipt.seq))
        receipt.add_done_callback(lambda receipt: 1 / 0)  # logged
        with pytest.raises(TimeoutError, match="not appended yet"):
            receipt.result(timeout=0.001)
        producer.flush()
        receipt.add_done_callback(lambda receipt: seen.append(receipt.seq))
    assert seen == [1, 1]
    assert "appended" in repr(receipt)


def test_batches_whose_replies_are_lost_are_appended_once(
    ms: Any, through: Any, proxy: Proxy
) -> None:
    with through.producer("s", max_batch=10) as producer:
        for lost in (1, 3):
            proxy.swallowing = [b"TAPPENDMANY"] * lost
            for n in range(25):
                producer.append({"n": n})
            producer.flush()
        assert numbers(ms) == [*range(25)] * 2
        assert producer.metrics()["repeats"] == 4


def test_batches_are_appended_once_over_broken_connections(
    ms: Any, through: Any, proxy: Proxy
) -> None:
    proxy.cutting = (150, 320)
    with through.producer("s", max_batch=7, linger=0) as producer:
        for n in range(250):
            producer.append({"n": n})
    assert numbers(ms) == list(range(250))
    with through.writer("t", "w") as writer:
        assert writer.append_many(({"n": n} for n in range(250)), batch=7) == 250
    assert numbers(ms, "t") == list(range(250))
    assert proxy.connections > 5


def test_numbers_continue_in_a_producer_of_the_same_name(ms: Any) -> None:
    with ms.producer("s", "import") as producer:
        assert producer.last_seq is None
        for n in (1, 2, 3):
            producer.append({"n": n})
    with ms.producer("s", "import") as producer:
        assert producer.last_seq == 3
        assert producer.append({"n": "again"}, seq=3).result() == 3
        assert producer.append({"n": 4}).seq == 4
        assert producer.append({"n": 10}, seq=10).seq == 10
        with pytest.raises(ValueError, match="above 10"):
            producer.append({"n": 9}, seq=9)
        for seq in (-1, 2**64, True, "5"):
            with pytest.raises(ValueError, match="seq must be"):
                producer.append({"n": 0}, seq=seq)
    assert numbers(ms) == [1, 2, 3, 4, 10]


def test_two_producers_with_one_name_are_reported(
    ms: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with ms.producer("s", "p") as one, ms.producer("s", "p") as other:
        for n in range(3):
            one.append({"n": n})
        one.flush()
        assert not caplog.records
        for n in range(4):
            other.append({"n": n})
        other.flush()
    assert "3 entries of the producer 'p' have numbers that 's' has already" in caplog.text
    assert ms.xlen("s") == 4


def test_a_value_that_is_too_large_is_refused_alone(ms: Any, long_values: int) -> None:
    with ms.producer("s", linger=60, buffer=2**26) as producer:
        good = producer.append({"n": 1})
        bad = producer.append({"n": "x" * (long_values + 1)})
        last = producer.append({"n": 3})
        with pytest.raises(InvalidFields, match="entry 2 has"):
            producer.flush()
        producer.flush()  # raised once
        assert (good.error, last.error) == (None, None)
        with pytest.raises(InvalidFields, match="proto-max-bulk-len"):
            bad.result()
        assert producer.metrics()["refused"] == 1
    assert numbers(ms) == [1, 3]
    rows = [{"n": 4}, {"n": "x" * (long_values + 1)}, {"n": 6}]
    with ms.writer("s", "w") as writer:
        with pytest.raises(InvalidFields, match="entry 2 has"):
            writer.append_many(rows, seq=1)
        assert writer.last_seq() == 1
        assert writer.append_many(rows[2:], seq=2) == 1
    assert numbers(ms) == [1, 3, 4, 6]


@pytest.fixture
def long_values(server: Server) -> Iterator[int]:
    """The limit of a value, made small."""
    with connect(url_of(server)) as admin:
        [before] = admin.config_get("proto-max-bulk-len").values()
        admin.config_set("proto-max-bulk-len", 2**20)
        yield 2**20
        admin.config_set("proto-max-bulk-len", before)


def test_entries_after_a_seal_fail_and_those_before_do_not(ms: Any) -> None:
    producer = ms.producer("s", "p", linger=60)
    with suppress(Sealed), producer:
        before = producer.append({"n": 1})
        producer.flush()
        ms.tseal("s", "left", "right")
        after = [producer.append({"n": n}) for n in (2, 3)]
        with pytest.raises(Sealed) as refused:
            producer.flush()
        assert refused.value.children == ["left", "right"]
        assert before.error is None
        assert all(isinstance(receipt.error, Sealed) for receipt in after)
        with pytest.raises(Sealed):
            producer.append({"n": 4})
    assert numbers(ms) == [1]
    with ms.writer("s", "w") as writer, pytest.raises(Sealed) as refused:
        writer.append_many([{"n": 5}])
    assert refused.value.children == ["left", "right"]


def test_an_error_that_does_not_end_ends_the_producer(ms: Any) -> None:
    ms.set("text", "x")
    producer = ms.producer("text")
    receipt = producer.append({"n": 1})
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        producer.close()
    assert "failed" in repr(receipt)
    producer.close()
    with pytest.raises((MillstreamError, ResponseError)):
        producer.append({"n": 2})
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        ms.producer("text", "named")


def test_append_waits_while_the_buffer_is_full(ms: Any, through: Any, proxy: Proxy) -> None:
    with through.producer("s", max_batch=1, linger=0, buffer=100) as producer:
        proxy.swallowing = [b"TAPPENDMANY"]
        most = 0
        for n in range(100):
            producer.append({"n": n})
            most = max(most, producer.pending)
    assert most <= 6
    assert numbers(ms) == list(range(100))


def test_fields_that_cannot_be_sent_do_not_disturb_others(ms: Any) -> None:
    with ms.producer("s") as producer:
        producer.append({"n": 1})
        for fields in ({}, {"n": None}, 5, "text", {"n": "\ud800"}):
            with pytest.raises(InvalidFields):
                producer.append(fields)
        producer.append([("n", 2), (b"\xff", 2.5)])
    assert numbers(ms) == [1, 2]


def test_a_closed_producer_takes_no_entry(ms: Any) -> None:
    producer = ms.producer("s")
    producer.close()
    producer.close()
    with pytest.raises(MillstreamError, match="is closed"):
        producer.append({"n": 1})
    for options in ({"linger": -1}, {"max_batch": 10_001}, {"buffer": 0}, {"retry_for": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            ms.producer("s", **options)


def test_an_exception_in_the_block_is_not_replaced(ms: Any) -> None:
    def fail(producer: Any) -> None:
        producer.append({"n": 1})
        raise ZeroDivisionError

    ms.set("text", "x")
    with pytest.raises(ZeroDivisionError), ms.producer("text") as producer:
        fail(producer)


def test_threads_share_a_producer(server: Server) -> None:
    with connect(url_of(server)) as ms:
        with ms.producer("s", max_batch=50) as producer:

            def work(first: int) -> None:
                for n in range(first, first + 300):
                    producer.append({"n": n})

            threads = [threading.Thread(target=work, args=[k * 1000]) for k in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        found = numbers(ms)
    assert len(found) == 900
    for k in range(3):
        mine = [n for n in found if n // 1000 == k]
        assert mine == list(range(k * 1000, k * 1000 + 300))


def test_a_cancelled_task_loses_no_entry(server: Server) -> None:
    async def run() -> list[int]:
        async with aio.connect(url_of(server)) as ms:
            async with ms.producer("s", linger=60, buffer=30) as producer:
                receipt = await producer.append({"n": 1})
                waits = asyncio.create_task(receipt.result())
                full = asyncio.create_task(producer.append({"n": "x" * 100}))
                await full
                late = asyncio.create_task(producer.append({"n": "late"}))
                await asyncio.sleep(0)
                for task in (waits, late):
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                await producer.flush()
                assert await receipt == 1
            return [len(record["n"]) for record in await ms.trange("s")]

    assert asyncio.run(run()) == [1, 100]


def test_a_producer_is_not_used_after_a_fork(server: Server) -> None:
    with connect(url_of(server)) as ms, ms.producer("s", linger=60) as producer:
        producer.append({"n": 1})
        child = os.fork()
        if not child:
            with suppress(MillstreamError):
                producer.append({"n": 2})
                os._exit(1)
            with suppress(MillstreamError):
                producer.flush()
                os._exit(2)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer.append({"n": 3})
    with connect(url_of(server)) as ms:
        assert numbers(ms) == [1, 3]


def test_killed_producers_append_each_row_once(durable_server: Server) -> None:
    words = ["-m", "tests.client.killed_producers", url_of(durable_server), "--kills", "6"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 3


# ---------------------------------------------------------------- rows


def test_rows_with_numbers_are_not_doubled(ms: Any) -> None:
    rows = [{"n": n} for n in range(1, 31)]
    with ms.writer("s", "import") as writer:
        assert writer.last_seq() is None
        assert writer.append_many(rows[:20], seq=1, batch=6) == 20
        assert writer.metrics()["appended"] == 20
    with ms.writer("s", "import") as writer:
        assert writer.last_seq() == 20
        assert writer.append_many(iter(rows), seq=1, batch=7) == 30
        assert writer.append_many([{"n": 31}]) == 1  # without a number: a new row
        assert writer.append_many([]) == 0
    assert numbers(ms) == list(range(1, 32))


def test_an_error_of_a_row_leaves_the_rows_before_it(ms: Any) -> None:
    def rows() -> Iterator[Any]:
        for n in range(1, 8):
            yield {"n": n}
        raise ZeroDivisionError

    with ms.writer("s", "w") as writer:
        with pytest.raises(ZeroDivisionError):
            writer.append_many(rows(), batch=3)
        assert numbers(ms) == list(range(1, 8))
        with pytest.raises(InvalidFields):
            writer.append_many([{"n": 8}, {"n": None}, {"n": 9}])
        assert numbers(ms) == list(range(1, 9))
        for wrong in ({"n": 1}, "text", 5):
            with pytest.raises(InvalidFields, match="rows must be"):
                writer.append_many(wrong)
        for seq in (-1, "1", 2**64):
            with pytest.raises(ValueError, match="seq must be"):
                writer.append_many([{"n": 1}], seq=seq)
        with pytest.raises(ValueError, match="batch must be"):
            writer.append_many([{"n": 1}], batch=10_001)

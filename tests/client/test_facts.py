"""Facts whose completion is refused, and facts whose lease is over."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from tests.client.apis import Api
from tests.client.proxy import Proxy
from tests.support.waiting import wait_until

from millstream.client import ReservationLost, Stalled


def test_a_fact_refused_at_the_end_of_its_block_is_aborted(ms: Any) -> None:
    with ms.writer("s", "w") as writer:
        with pytest.raises(redis.DataError), writer.fact() as fact:
            fact["n"] = object()
        assert writer.pending == 0
        assert ms.tinfo("s")["reservations"] == 0
        ms.execute_command("CONFIG", "SET", "stream-held-max-bytes", "50")
        held = writer.fact()
        ms.tappend("s", {"n": "x" * 100})  # held, and so the limit is reached
        try:
            with pytest.raises(Stalled), writer.fact() as fact:
                fact["n"] = "x" * 100
        finally:
            ms.execute_command("CONFIG", "SET", "stream-held-max-bytes", "256mb")
        assert writer.pending == 1
        assert ms.tinfo("s")["reservations"] == 1
        held.abort()
        assert writer.metrics()["aborted"] == 3


def test_a_fact_neither_completed_nor_aborted_leaves_no_orphan(
    api: Api, ms: Any, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    through = api.connect(proxy.url, timeout=1.0)
    with through.writer("s", "w", retry_for=0.2) as writer:
        fact = writer.fact()
        proxy.swallowing = [b"TCOMPLETE"] * 1000
        fact["n"] = 1
        proxy.cutting = (0, 0)
        with pytest.raises(redis.ConnectionError), fact:
            pass
        assert writer.pending == 0
        assert "could not be given up" in caplog.text
        proxy.swallowing = []
        proxy.cutting = None
    assert ms.tinfo("s")["reservations"] == 0


def test_a_heartbeat_finds_out_which_facts_are_lost(
    ms: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with ms.writer("s", "w", lease=60) as writer:
        kept, gone, done = writer.facts(3)
        for fact in (kept, gone, done):
            fact["n"] = 1
        ms.tabort("s", "w", gone.id)
        ms.tcomplete("s", "w", done.id, {"n": 1})
        writer.heartbeat()
        assert writer.pending == 1
        assert writer.metrics()["lost"] == 2
        assert f"fact {gone.id} of 'w' is lost" in caplog.text
        with pytest.raises(ReservationLost):
            gone.complete()
        done.complete()  # another writer completed it, so this is no loss
        kept.complete()
        assert writer.metrics()["lost"] == 1
        assert writer.metrics()["completed"] == 2
    assert ms.xlen("s") == 2


def test_a_heartbeat_renews_only_the_open_facts(ms: Any) -> None:
    with ms.writer("s", "w", lease=0.05) as writer:
        writer.facts(5)
        wait_until(lambda: ms.tinfo("s")["reservations"], lambda count: count == 0)
        wait_until(lambda: (writer.heartbeat(), writer.pending)[1], lambda count: count == 0)
        assert writer.metrics()["lost"] == 5

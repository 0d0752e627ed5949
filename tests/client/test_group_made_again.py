"""A consumer whose group vanishes: it is created again at the same place, and nothing is lost."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.apis import Api, take
from tests.client.conftest import url_of
from tests.support.server import Server
from tests.support.waiting import wait_until

WAYS: dict[str, Callable[[Any], object]] = {
    "flushed": lambda ms: ms.flushall(),
    "deleted": lambda ms: ms.delete("jobs"),
    "renamed": lambda ms: ms.rename("jobs", "old"),
    "destroyed": lambda ms: ms.xgroup_destroy("jobs", "crew"),
    "replaced": lambda ms: (
        ms.execute_command("XADD", "x", "1-1", "n", "0") and (ms.rename("x", "jobs"))
    ),
}


def read_all(consumer: Any, last: str) -> list[str]:
    found: list[str] = []
    while not found or found[-1] != last:
        found.append(take(consumer, 1)[0]["n"])
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("position", ["latest", "trim_horizon"])
@pytest.mark.parametrize("retry", [None, 60])
def test_entries_after_the_end_of_a_group_are_delivered(
    ms: Any, way: str, position: str, retry: float | None
) -> None:
    ms.tappend("jobs", {"n": "before"})
    with ms.consumer("jobs", "crew", retry=retry, position=position) as consumer:
        ms.tappend("jobs", {"n": 1})
        read_all(consumer, "1")
        assert consumer.read(timeout=0) is None
        WAYS[way](ms)
        ms.tappend("jobs", {"n": 2})
        ms.tappend("jobs", {"n": 3})
        expected = ["0", "2", "3"] if way == "replaced" else ["2", "3"]
        assert read_all(consumer, "3") == expected
        assert (consumer.read(timeout=0), consumer.missed) == (None, 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_group_that_vanishes_before_a_read_loses_nothing(ms: Any, way: str) -> None:
    ms.tappend("jobs", {"n": "before"})
    with ms.consumer("jobs", "crew") as consumer:
        ms.tappend("jobs", {"n": 1})
        WAYS[way](ms)
        ms.tappend("jobs", {"n": 2})
        kept = {"destroyed": ["1", "2"], "replaced": ["0", "2"]}.get(way, ["2"])
        assert read_all(consumer, "2") == kept


def test_a_new_stream_with_smaller_ids_is_read_from_its_start(ms: Any) -> None:
    with ms.consumer("jobs", "crew", retry=60) as consumer:
        ms.tappend("jobs", {"n": 1})
        read_all(consumer, "1")
        ms.delete("jobs")
        ms.xadd("jobs", {"n": 2}, id="1-1")
        ms.xadd("jobs", {"n": 3}, id="1-2")
        assert read_all(consumer, "3") == ["2", "3"]


@pytest.mark.parametrize("way", WAYS)
def test_a_waiting_reader_whose_group_vanishes_loses_nothing(
    api: Api, server: Server, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    ms = api.connect(url_of(server))
    with ms.consumer("jobs", "crew") as consumer:
        ms.tappend("jobs", {"n": 1})
        read_all(consumer, "1")
        with Other(server) as other:
            other.when_blocked(lambda: (WAYS[way](other.ms), other.ms.tappend("jobs", {"n": 2})))
            assert read_all(consumer, "2") == (["0", "2"] if way == "replaced" else ["2"])
    assert "the group 'crew' of 'jobs' does not exist any more" in caplog.text


class Other:
    """Another client, which acts once the consumer waits at the server."""

    def __init__(self, server: Server) -> None:
        self.ms = Api("sync").connect(url_of(server))
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Other:
        return self

    def when_blocked(self, act: Callable[[], object]) -> None:
        def run() -> None:
            wait_until(lambda: self.ms.info("clients")["blocked_clients"], lambda count: count > 0)
            act()

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._thread.join()
        self.ms.close()


def test_a_consumer_recreates_its_expired_group_in_place(ms: Any) -> None:
    with ms.consumer("jobs", "crew", ttl=0.05) as consumer:
        ms.tappend("jobs", {"n": 1})
        read_all(consumer, "1")
        wait_until(lambda: ms.xinfo_groups("jobs"), lambda groups: not groups)
        ms.tappend("jobs", {"n": 2})
        consumer.heartbeat()
        assert read_all(consumer, "2") == ["2"]


def test_a_server_that_lost_its_data_loses_nothing_after(
    api: Api, new_server: Callable[..., Server]
) -> None:
    server = new_server("volatile").start()
    ms = api.connect(url_of(server))
    with ms.consumer("jobs", "crew", retry=60) as consumer:
        ms.tappend("jobs", {"n": 1})
        read_all(consumer, "1")
        server.kill()
        shutil.rmtree(server.directory)
        server.start()
        wait_until(lambda: answers(ms), bool)
        ms.tappend("jobs", {"n": 2})
        assert read_all(consumer, "2") == ["2"]


def answers(ms: Any) -> bool:
    try:
        return bool(ms.ping())
    except Exception:
        return False


def test_a_deleted_stream_is_no_error_for_an_idle_consumer(ms: Any) -> None:
    with ms.consumer("jobs", "crew", retry=60) as consumer:
        assert consumer.read(timeout=0.01) is None
        ms.delete("jobs")
        assert consumer.lag() is None
        for _ in range(3):
            assert consumer.read(timeout=0.01) is None
        assert ms.exists("jobs")


def test_two_consumers_make_one_group_again(ms: Any) -> None:
    with ms.consumer("jobs", "crew") as one, ms.consumer("jobs", "crew") as two:
        ms.flushall()
        for n in range(4):
            ms.tappend("jobs", {"n": n})
        found = [record["n"] for source in (one, two) for record in take(source, 2)]
        assert found == ["0", "1", "2", "3"]

"""SENTINEL FAILOVER while the primary works and has load, with the default configuration.

Nothing that a client was answered may be missing on any server afterwards, and the old primary
becomes a replica without a rewind or a full sync, before Sentinel orders it.
"""

from __future__ import annotations

import threading
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError, ResponseError
from tests.support.sentinels import DEADLINE_S, NAME, Group, knows_everything, primary_port
from tests.support.waiting import wait_until

WRITERS = 8


class PlannedRounds:
    """Writers, and one promotion in each round, with at least `answers` before and after it."""

    def __init__(
        self, folder: Path, directives: dict[str, str] | None = None, answers: int = 200
    ) -> None:
        self.group = Group(folder, directives or {}, sentinels=1)
        self._answers = answers
        self.confirmed: list[bytes] = []
        self._sentinel = self.group.sentinels.client()
        self._is_over = threading.Event()
        wait_until(lambda: knows_everything(self._sentinel), deadline_s=DEADLINE_S)
        self._writers = [threading.Thread(target=self._write) for _ in range(WRITERS)]
        for writer in self._writers:
            writer.start()

    def _write(self) -> None:
        client: Redis = self._sentinel.master_for(NAME, socket_timeout=5.0)
        while not self._is_over.is_set():
            try:
                self.confirmed.append(client.xadd("s", {"n": 1}))
            except RedisError:
                self._is_over.wait(0.05)

    def _wait_for_more(self) -> None:
        count = len(self.confirmed)
        wait_until(lambda: len(self.confirmed) > count + self._answers, deadline_s=DEADLINE_S)

    def play(self) -> str:
        """One promotion; what happened."""
        wait_until(lambda: knows_everything(self._sentinel), deadline_s=DEADLINE_S)
        self._wait_for_more()
        before = primary_port(self._sentinel)
        wait_until(self._begin, deadline_s=DEADLINE_S)
        wait_until(lambda: self._has_moved(before), deadline_s=DEADLINE_S)
        self._wait_for_more()
        return f"{len(self.confirmed)} answers, {before} -> {primary_port(self._sentinel)}"

    def _begin(self) -> bool:
        try:
            return bool(self._sentinel.sentinels[0].sentinel_failover(NAME))
        except ResponseError:  # the one before is not over, or no replica is known to be good
            return False

    def _has_moved(self, before: int) -> bool:
        return primary_port(self._sentinel) not in (0, before)

    def finish(self) -> str:
        """Judge all servers, and stop."""
        self._is_over.set()
        for writer in self._writers:
            writer.join()
        primary = Redis(port=primary_port(self._sentinel))
        wait_until(lambda: primary.wait(2, 1000) == 2, deadline_s=DEADLINE_S)
        for server in self.group.servers:
            client = Redis(port=server.port)
            there = {entry_id for entry_id, _ in client.xrange("s")}
            lost = [entry_id for entry_id in self.confirmed if entry_id not in there]
            assert not lost, f"{len(lost)} of {len(self.confirmed)} answers are lost: {lost[:5]}"
            stats = client.info("stats")
            assert stats["sync_rewinds"] == 0, "a server had frames that no other one has"
        return f"{len(self.confirmed)} answers, none lost"

    def stop(self) -> None:
        self._is_over.set()
        self.group.stop()

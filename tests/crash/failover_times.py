"""`python -m tests.crash.failover_times --kills 30 --timeout 5000`: the time without appends.

Three members of a shard with a real etcd. A client appends to the primary all the time, and looks
for it at all members when it does not answer. The primary is killed with kill -9, or CLUSTER
FAILOVER makes another member the primary (--planned). The time is that from the last confirmed
append of the old primary to the first one of the new one. With the default directives except
cluster-node-timeout.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

from tests.support.client import ConnectionClosed, RawClient
from tests.support.etcd import Etcd
from tests.support.member_servers import MemberServers, ask
from tests.support.resp import Simple
from tests.support.server import Server
from tests.support.waiting import wait_until

LOOK_S = 0.005
QUIET_S = 60.0
CALM_S = (0.5, 1.5)  # between two failovers, so that they begin anywhere in a beat


class Appender:
    """Appends one entry after the other. `answered_s` are the times of the replies."""

    def __init__(self, servers: list[Server]) -> None:
        self.answered_s: list[float] = []
        self._servers = servers
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over:
            for server in self._servers:
                try:
                    with RawClient(server.port, timeout_s=1.0) as client:
                        while not self._is_over and isinstance(
                            client.call("XADD", "s", "*", "n", "1"), bytes
                        ):
                            self.answered_s.append(time.monotonic())
                except (OSError, ConnectionClosed):
                    pass
            time.sleep(LOOK_S)


def pause_s(appender: Appender, at: int) -> float:
    """The longest time between two confirmed appends from this one on."""
    times = appender.answered_s[at:]
    return max(after - before for before, after in pairwise(times))


def fail_over(shard: MemberServers, appender: Appender, *, is_planned: bool) -> float:
    """One failover; the pause in seconds."""
    old = shard.wait_for_followers(QUIET_S)
    time.sleep(random.uniform(*CALM_S))
    at = max(0, len(appender.answered_s) - 1)
    if is_planned:
        target = next(shard.others(old))
        assert ask(target, "CLUSTER", "FAILOVER") == Simple("OK")
    else:
        old.kill()
    new = shard.wait_for_primary(old)
    count = len(appender.answered_s)
    wait_until(lambda: len(appender.answered_s) > count + 10, what=f"appends at {new.port}")
    found = pause_s(appender, at)
    if not is_planned:
        old.launch()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.failover_times")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--timeout", type=int, default=5000, help="cluster-node-timeout, in ms")
    parser.add_argument("--planned", action="store_true")
    options = parser.parse_args()
    given = {"cluster-node-timeout": str(options.timeout), "cluster-lease": "10"}
    with tempfile.TemporaryDirectory(prefix="failover-times") as name:
        folder = Path(name)
        etcd = Etcd(folder / "etcd").start()
        shard = MemberServers(folder, etcd, given=given)
        try:
            appender = Appender(shard.start().servers)
            wait_until(lambda: len(appender.answered_s) > 10, what="the first appends")
            pauses = []
            for number in range(options.kills):
                pauses.append(fail_over(shard, appender, is_planned=options.planned))
                print(f"{number}: {pauses[-1]:.3f} s", flush=True)
            appender.stop()
        finally:
            shard.kill()
            etcd.kill()
    pauses.sort()
    p50, p99 = (pauses[min(len(pauses) - 1, len(pauses) * part // 100)] for part in (50, 99))
    print(f"{len(pauses)} failovers: p50 {p50:.3f} s, p99 {p99:.3f} s, worst {pauses[-1]:.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A Redis that follows our server while writers change everything, and what it has to show.

`python -m tests.support.redis_follower --seconds 600` cuts links, kills the Redis and restarts our
server in turn, and compares both after each load.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.client.proxy import Proxy
from tests.support.client import ConnectionClosed, RawClient
from tests.support.mixed_changes import Changes
from tests.support.server import Server, redis_program
from tests.support.waiting import wait_until
from tests.wire.test_tools import run, url_of


def new_redis(directory: Path, port: int) -> Server:
    """A Redis that follows the server at this port."""
    return Server(directory, {"replicaof": f"127.0.0.1 {port}"}, redis_program())


def is_even(ours: RawClient, theirs: RawClient) -> bool:
    """True if the Redis has applied everything."""
    facts, mine = theirs.info("replication"), ours.info("replication")
    return (
        facts.get("master_link_status") == "up"
        and facts["master_replid"] == mine.get("redis_replid")
        and int(facts["slave_repl_offset"]) >= int(mine["redis_offset"])
        and ours.call("WAIT", 1, 2000) == 1
    )


def assert_same(primary: Server, redis: Server) -> None:
    with primary.client() as ours, redis.client() as theirs:
        wait_until(lambda: is_even(ours, theirs), what="the commands", deadline_s=60)
        done = run("compare", url_of(primary), url_of(redis), "--as-replica")
        assert done.returncode == 0, done.stdout + done.stderr + primary.log


def change_under_load(primary: Server, seed: int, disturb: Callable[[], None], times: int) -> None:
    """Two writers send random changes; after some of them, `disturb` is called, this many times."""
    is_over = threading.Event()

    def write(number: int) -> None:
        changes = Changes(number, with_moves=number % 2 == 0)
        with primary.client() as client:
            for words in changes.begin():
                client.call(*words)
            while not is_over.is_set():
                requests = changes.draw(5)
                try:
                    replies = client.pipeline(requests)
                except (ConnectionClosed, OSError):
                    return  # the server was stopped
                for words, reply in zip(requests, replies, strict=True):
                    changes.learn(words, reply)

    def frames() -> int:
        with primary.client() as client:
            return int(client.info("replication")["repl_frame"])

    writers = [threading.Thread(target=write, args=(2 * seed + n,)) for n in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(times):
            wanted = frames() + 200
            # Under nice, on a busy machine, the servers may hardly run for seconds.
            wait_until(
                lambda wanted=wanted: frames() > wanted,  # type: ignore[misc]
                what="changes",
                deadline_s=60,
            )
            disturb()
    finally:
        is_over.set()
        for writer in writers:
            writer.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    end_s, rounds = time.monotonic() + options.seconds, 0
    with tempfile.TemporaryDirectory() as folder:
        primary = Server(Path(folder, "ours")).start()
        proxy = Proxy(primary.port)
        redis = new_redis(Path(folder, "redis"), proxy.port).start()
        ways: tuple[tuple[str, Callable[[], None]], ...] = (
            ("cut links", proxy.cut_all),
            ("a killed Redis", lambda: redis.restart("SIGKILL")),
            ("a rewrite", primary.rewrite_journal),
        )
        try:
            assert_same(primary, redis)
            while time.monotonic() < end_s:
                chance = random.Random(options.seed + rounds)
                name, disturb = chance.choice(ways)
                change_under_load(primary, options.seed + rounds, disturb, 3)
                if chance.random() < 0.2:
                    name += ", and our server killed"
                    primary.restart("SIGKILL")
                assert_same(primary, redis)
                rounds += 1
                with primary.client() as client:
                    facts = client.info("replication")
                print(
                    f"{rounds}: equal after {name}, frame {facts['repl_frame']},"
                    f" offset {facts['redis_offset']}",
                    flush=True,
                )
        finally:
            redis.kill()
            primary.kill()
            proxy.close()


if __name__ == "__main__":
    main()

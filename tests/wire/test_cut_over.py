"""`millstream import URL --to URL --follow` and `--promote`: the cut-over from a real Redis."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import redis
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.wire.test_tools import run, url_of


class Writer:
    """Appends to the Redis until it refuses, and remembers the IDs that were confirmed."""

    def __init__(self, port: int, key: str) -> None:
        self.confirmed: list[bytes] = []
        self.refusal = ""
        self._client = redis.Redis(port=port)
        self._key = key
        self._is_over = False
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        while not self._is_over:
            pipe = self._client.pipeline(transaction=False)
            for _ in range(16):
                pipe.xadd(self._key, {"n": str(len(self.confirmed))})
            try:
                replies = pipe.execute(raise_on_error=False)
            except redis.RedisError as error:
                self.refusal = str(error)
                return
            for reply in replies:
                if isinstance(reply, Exception):
                    self.refusal = str(reply)
                    return
                self.confirmed.append(reply)

    def end(self) -> None:
        self._is_over = True
        self._thread.join()
        self._client.close()


@contextlib.contextmanager
def following(redis_url: str, ours_url: str) -> Iterator[subprocess.Popen[str]]:
    """The program with --follow, until the link is up."""
    words = ["import", redis_url, "--to", ours_url, "--follow"]
    program = subprocess.Popen(
        [sys.executable, "-u", "-m", "millstream", *words], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    try:
        for line in program.stdout:
            if line.startswith("link up, lag "):
                break
        yield program
    finally:
        program.send_signal(signal.SIGINT)
        assert "continues to follow" in program.stdout.read()
        assert program.wait() == 0


def cut_over(
    redis_server: Server, ours: redis.Redis, words: Sequence[str], keys: list[str]
) -> None:
    """Promote while a writer appends to each key: everything that was confirmed is here."""
    writers = [Writer(redis_server.port, key) for key in keys]
    wait_until(lambda: all(len(one.confirmed) > 500 for one in writers), what="writes")
    done = run(*words)
    wait_until(lambda: all(one.refusal for one in writers), what="refusals")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "list: list" in done.stdout
    for key, one in zip(keys, writers, strict=True):
        one.end()
        assert "NOREPLICAS" in one.refusal
        here = {entry[0] for entry in ours.xrange(key)}
        assert here.issuperset(one.confirmed)


def test_a_cut_over_under_load_loses_no_confirmed_write(
    redis_server: Server, new_server: Callable[..., Server]
) -> None:
    server = new_server("new").start()
    theirs = redis.Redis(port=redis_server.port)
    ours = redis.Redis(port=server.port)
    theirs.config_set("repl-diskless-sync-delay", 0)
    theirs.rpush("list", "a")
    words = ("import", url_of(redis_server), "--to", url_of(server), "--promote")
    done = run(*words)
    assert done.returncode == 1
    assert "begin with --follow" in done.stderr
    with following(url_of(redis_server), url_of(server)):
        pass
    for number in range(3):
        theirs.config_set("min-replicas-max-lag", 10 * number)  # 0 turns min-replicas-to-write off
        cut_over(redis_server, ours, words, [f"s{number}-{i}" for i in range(2)])
        assert ours.set("mine", "1")
        assert "the cut-over is done" in run(*words).stderr
        theirs.config_set("min-replicas-to-write", 0)
        ours.execute_command("REPLICAOF", "127.0.0.1", redis_server.port)
        wait_until(lambda: ours.info("replication")["master_link_status"] == "up")
    # A step that fails is taken back: this user may not look at streams.
    theirs.acl_setuser(
        "mover", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-xinfo"]
    )
    url = f"redis://mover:pw@127.0.0.1:{redis_server.port}"
    done = run("import", url, *words[2:])
    theirs.acl_deluser("mover")
    assert done.returncode == 1
    assert "still follows" in done.stderr
    assert theirs.config_get("min-replicas-to-write") == {"min-replicas-to-write": "0"}
    assert theirs.xadd("s", {"a": "b"})
    wait_until(lambda: ours.xlen("s") == 1)
    # The writers of a source that is a replica cannot be stopped at it.
    theirs.execute_command("REPLICAOF", "127.0.0.1", 1)
    done = run(*words)
    theirs.execute_command("REPLICAOF", "NO", "ONE")
    assert done.returncode == 1
    assert "is a replica of 127.0.0.1:1, whose writers" in done.stderr

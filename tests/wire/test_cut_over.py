"""`millstream import URL --to URL --follow` and `--promote`: the cut-over from a real Redis."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import redis
from tests.support.certificates import Authority
from tests.support.server import Server, free_port, redis_program
from tests.support.waiting import wait_until
from tests.wire.test_tools import run, url_of

from millstream.server.moving.live_following import Pair, Watch, is_on_this_machine


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


def test_each_way_takes_tls_and_a_password(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    """They are in the URL of the source. No text has the password."""
    authority = Authority(tmp_path)
    tls = {"tls-port": str(free_port()), "tls-auth-clients": "no"}
    source = new_server("old", {**authority.directives(), **tls, "save": '""'}, redis_program())
    server = new_server("new", {"tls-ca-cert-file": str(authority.file)}).start()
    theirs = redis.Redis(port=source.start().port)
    ours = redis.Redis(port=server.port, decode_responses=True)
    theirs.config_set("repl-diskless-sync-delay", 0)
    theirs.acl_setuser("mover", enabled=True, passwords=["+a/b@c"], keys=["*"], commands=["+@all"])
    theirs.xadd("s", {"a": "b"}, id="1-1")
    url = f"rediss://{{}}@127.0.0.1:{tls['tls-port']}?ssl_ca_certs={authority.file}"
    good, bad = url.format("mover:a%2Fb%40c"), url.format("mover:secret")
    data = str(tmp_path / "data")
    to = ("--to", url_of(server))
    for words in (
        ("import", bad, "--dir", data), ("import", bad, *to), ("import", bad, *to, "--follow"),
        ("import", bad, *to, "--promote"), ("compare", bad, url_of(server)),
    ):  # fmt: skip
        done = run(*words)
        assert done.returncode != 0
        assert "password" in done.stderr
        assert "secret" not in done.stderr
    for words in (
        ("import", good, "--dir", data), ("compare", good, data),
        ("import", good, *to), ("compare", good, url_of(server)),
    ):  # fmt: skip
        done = run(*words)
        assert done.returncode == 0, done.stderr
    with following(good, url_of(server)):
        theirs.xadd("s", {"a": "b"}, id="2-1")
        wait_until(lambda: ours.xlen("s") == 2)
    done = run("import", good, *to, "--promote")
    assert done.returncode == 0, done.stderr
    assert ours.xadd("s", {"a": "b"}, id="3-1") == "3-1"
    # A source without TLS, after one with it.
    theirs.config_set("min-replicas-to-write", 0)
    with following(url_of(source), url_of(server)):
        wait_until(lambda: ours.xlen("s") == 2)
        # Redis 7.0 does not tell its replicas how many entries a group has read.
        theirs.xgroup_create("s", "g", id="0")
        theirs.xreadgroup("g", "ann", {"s": ">"})
        wait_until(lambda: [group["pending"] for group in ours.xinfo_groups("s")] == [2])
        done = run("compare", url_of(source), url_of(server), "--as-replica")
        assert done.returncode == 0, done.stdout
    done = run("import", url_of(server), "--to", url_of(source), "--follow")
    assert (done.returncode, theirs.info("replication")["role"]) == (1, "master")
    assert "is not a millstream server" in done.stderr
    assert run("import", url_of(source), "--to", "http://new").returncode == 2


def test_a_millstream_server_is_followed_with_its_own_lag(
    server: Server, new_server: Callable[..., Server]
) -> None:
    follower = new_server("new").start()
    theirs, ours = redis.Redis(port=server.port), redis.Redis(port=follower.port)
    theirs.xadd("s", {"a": "b" * 5000})
    pair = Pair(url_of(server), url_of(follower))
    assert pair.begin()
    watch = Watch(pair)
    wait_until(lambda: ours.xlen("s") == 1)
    wait_until(lambda: any("link up, lag 0 bytes" in line for line in watch.lines()))
    assert not watch.is_redis
    done = run("import", url_of(server), "--to", url_of(follower), "--promote")
    assert "send REPLICAOF NO ONE to" in done.stderr


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


def test_each_way_takes_a_unix_socket_and_ipv6(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    socket = tmp_path / "redis.sock"
    given = {"unixsocket": str(socket), "save": '""', "bind": "127.0.0.1 ::1"}
    source = new_server("old", given, redis_program()).start()
    server = new_server("new", {"bind": "127.0.0.1 ::1"}).start()
    theirs = redis.Redis(port=source.port, db=1)
    theirs.config_set("repl-diskless-sync-delay", 0)
    theirs.xadd("s", {"a": "b"}, id="1-1")
    unix, of_one = f"unix://{socket}", f"unix://{socket}?db=1"
    six, ours = f"redis://[::1]:{source.port}", f"redis://[::1]:{server.port}"
    for number, url in enumerate((unix, six)):
        data = str(tmp_path / f"data{number}")
        for words in (("import", url, "--dir", data), ("compare", data, url)):
            done = run(*words)
            assert done.returncode == 0, (words, done.stderr)
    done = run("import", of_one, "--to", ours)
    assert done.returncode == 0, done.stderr
    assert run("compare", of_one, f"{ours}/1").returncode == 0
    for url, words in (
        (f"unix://{socket}?db=x", "is invalid"), (f"unix://{tmp_path}/none", "No such file"),
        ("unix://", "is invalid"), (f"unix://host{socket}", "is invalid"),
    ):  # fmt: skip
        for command in (("compare", url, ours), ("import", url, "--to", ours, "--follow")):
            done = run(*command)
            assert done.returncode != 0
            assert words in done.stderr, (command, done.stderr)
    assert is_on_this_machine(unix)
    assert not is_on_this_machine("redis://192.0.2.1:6455")
    with following(unix, ours):
        theirs.xadd("s", {"a": "b"}, id="2-1")
    with following(six, ours):
        assert "master_host:::1" in str(server.client().call("INFO", "replication"))
    done = run("import", six, "--to", ours, "--promote")
    assert done.returncode == 0, done.stderr
    with redis.Redis(port=server.port, db=1) as here:
        assert [entry for entry, _ in here.xrange("s")] == [b"1-1", b"2-1"]

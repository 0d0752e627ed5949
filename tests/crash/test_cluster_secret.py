"""cluster-secret-file with real servers: members with different secrets say so, and elect a primary
together as soon as they have the same one."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.member_servers import MemberServers, ask
from tests.support.resp import Error, Simple
from tests.support.server import Server, server_program
from tests.support.stored_cluster import stored
from tests.support.waiting import wait_until

from millstream.server.cluster.peers import WRONG_SECRET

GOOD, OTHER = "the secret of the nodes", "what was in another file"
REFUSED_ONE = "has sent another secret than that of this node"


def give(server: Server, secret: str) -> None:
    path = server.directory / "secret"
    path.write_text(secret)
    path.chmod(0o600)


def peer(server: Server, secret: str | bytes) -> object:
    with RawClient(server.port) as client:
        return client.call("CLUSTER", "PEER", secret)


@pytest.fixture
def shard(tmp_path: Path, etcd: Etcd) -> Iterator[MemberServers]:
    """Of three members, the last one has another secret."""
    made = MemberServers(tmp_path, etcd, given={"cluster-secret-file": "secret"})
    for server, secret in zip(made.servers, (GOOD, GOOD, OTHER), strict=True):
        server.directory.mkdir()
        give(server, secret)
    yield made.start()
    made.kill()


def test_members_with_different_secrets(shard: MemberServers) -> None:
    *agreed, third = shard.servers
    primary = shard.wait_for_followers()
    assert primary in agreed
    assert "secret" not in stored(shard.settings).values
    assert peer(primary, GOOD) == Simple("OK")
    assert peer(primary, OTHER) == peer(third, GOOD) == Error(WRONG_SECRET)
    for server in agreed:
        told = f"127.0.0.1:{third.port} does not accept this node: {WRONG_SECRET}"
        wait_until(lambda server=server, told=told: told in server.log, what="a warning")  # type: ignore[misc]
        assert server.log.count(told) == 1
    wait_until(lambda: third.log.count("does not accept this node") == 2, what="two warnings")
    assert third.log.count(REFUSED_ONE) == 1

    # A file that cannot be used leaves the secret as it is.
    (third.directory / "secret").chmod(0o644)
    third.signal(signal.SIGHUP)
    wait_until(lambda: "the earlier secret stays in use" in third.log, what="an error")
    assert peer(third, OTHER) == Simple("OK")

    with RawClient(third.port) as client:
        assert client.call("CLUSTER", "PEER", OTHER) == Simple("OK")
        give(third, GOOD)
        third.signal(signal.SIGHUP)
        wait_until(lambda: "the secret of the cluster was reread" in third.log, what="a message")
        assert client.read_to_end() == b""  # it has logged in with the earlier secret
    primary.kill()
    assert shard.wait_for_primary(primary) in (*agreed, third)  # both others have promised
    assert ask(third, "CONFIG", "GET", "cluster-secret-file") == [b"cluster-secret-file", b"secret"]


def test_a_start_with_a_secret_that_cannot_be_used(tmp_path: Path) -> None:
    words = ["--dir", str(tmp_path), "--port", "0", "--cluster-secret-file", "none"]
    done = subprocess.run(
        [*server_program(), *words], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"millstream: cluster-secret-file: cannot read {tmp_path}/none: No such file or directory\n"
    )

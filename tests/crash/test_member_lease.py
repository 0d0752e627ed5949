"""A shard whose primary confirms alone (N = 0): as long as its lease in a real etcd lasts."""

from __future__ import annotations

from pathlib import Path

from tests.support.etcd import Etcd
from tests.support.member_servers import MemberServers, ask
from tests.support.resp import Error
from tests.support.waiting import wait_until


def test_a_primary_confirms_until_its_lease_ends(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path / "etcd").start()
    shard = MemberServers(tmp_path, etcd, size=2, durable=0)
    try:
        primary = shard.start().wait_for_followers()
        assert isinstance(ask(primary, "XADD", "s", "*", "n", "1"), bytes)
        etcd.kill()
        # At the end of the lease, the reply to a request that has run is held.
        wait_until(
            lambda: ask(primary, "XLEN", "s"),
            lambda reply: isinstance(reply, Error) and "The cluster is down" in reply.text,
            "the end of the lease",
            10.0,
        )
        assert not isinstance(ask(primary, "XADD", "s", "*", "n", "2"), bytes)
        assert b"cluster_state:fail" in ask(primary, "CLUSTER", "INFO")
    finally:
        shard.kill()
        etcd.kill()

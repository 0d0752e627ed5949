"""Held entries while memory runs out: each stays in one place, whichever allocation fails."""

from __future__ import annotations

import _testcapi
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.storage_access import check_held, compact_held, held_entries

from millstream.storage.reservations.held import Held
from millstream.storage.streams.stream import Stream

ALLOCATIONS_MAX = 2000


@contextmanager
def failing_allocation(number: int) -> Iterator[None]:
    """The allocation with this number fails."""
    _testcapi.set_nomemory(number, number + 1)
    try:
        yield
    finally:
        _testcapi.remove_mem_hooks()


def held_of(in_process: InProcessServer) -> tuple[Held, Stream]:
    stream = in_process.stream()
    assert stream.held is not None
    return stream.held, stream


def runs_in_a_row(player: InProcessClient, held_by_writers: bool) -> bytes:
    """Two runs and single entries after a reservation, whose ID is returned. Reservations between
    them are settled."""
    first: bytes = player.call("TRESERVE s w")
    for group in range(3):
        between = player.call("TRESERVE s w")
        for number in range(20):
            if held_by_writers and number % 2:
                player.call(f"TCOMPLETE s v {player.call('TRESERVE s v').decode()} n {group}")
            else:
                player.call(f"TAPPEND s n {group}")
        if group == 1:
            compact_held(held_of(player.in_process)[0])
        player.call(f"TCOMPLETE s w {between.decode()} n between")
    return first


@pytest.mark.parametrize("held_by_writers", [False, True])
def test_a_run_that_cannot_be_made_leaves_each_entry_once(held_by_writers: bool) -> None:
    for number in range(ALLOCATIONS_MAX):
        in_process = InProcessServer()
        player = in_process.player()
        runs_in_a_row(player, held_by_writers)
        held, stream = held_of(in_process)
        before = held_entries(held)
        failed = False
        with failing_allocation(number):
            try:
                compact_held(held)
            except MemoryError:
                failed = True
        check_held(held, stream)
        assert held_entries(held) == before, number
        compact_held(held)
        check_held(held, stream)
        assert held_entries(held) == before, number
        if not failed:
            return
    pytest.fail("some allocation fails always")


@pytest.mark.parametrize("held_by_writers", [False, True])
def test_a_release_that_fails_leaves_each_entry_once(held_by_writers: bool) -> None:
    for number in range(ALLOCATIONS_MAX):
        in_process = InProcessServer()
        player = in_process.player()
        first = runs_in_a_row(player, held_by_writers)
        held, stream = held_of(in_process)
        before = held_entries(held)
        held.give_up_id(*map(int, first.split(b".")))
        failed = False
        with failing_allocation(number):
            try:
                held.release_into(stream)
            except MemoryError:
                failed = True
        assert stream.range() + held_entries(held) == before, number
        held.release_into(stream)
        assert stream.range() == before, number
        check_held(held, stream)
        if not failed:
            return
    pytest.fail("some allocation fails always")


@pytest.mark.parametrize(
    "line",
    ["TPEEK s 0 9", "TPOSITION s", "TRESERVE s v", "TABORT s v", "TMREAD 9 STREAMS s 0"],
)
def test_the_next_command_repeats_a_failed_release(line: str) -> None:
    in_process = InProcessServer()
    player = in_process.player()
    first = runs_in_a_row(player, held_by_writers=False)
    held, stream = held_of(in_process)
    before = held_entries(held)
    held.give_up_id(*map(int, first.split(b".")))
    with contextlib.suppress(MemoryError), failing_allocation(0):
        held.release_into(stream)
    assert stream.is_reserving
    player.call(line)
    assert stream.range() == before
    check_held(held, stream)

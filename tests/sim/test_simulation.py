"""Hundreds of seeds of the simulation, and its determinism: equal seeds give equal traces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.sim import simulation as simulation_module
from tests.sim.players import WORKERS
from tests.sim.promises import BrokenPromise
from tests.sim.simulation import USER_SEEDS, Simulation, SimulationFailure, play
from tests.support.effort import examples

from millstream.server.execution import eviction as eviction_module
from millstream.server.execution.access import Access
from millstream.storage.streams.retention import oldest_block_ms
from millstream.storage.streams.stream import Stream

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 75 + examples(30)
SEEDS_TO_EVERYTHING = 75
BATCH_SEEDS = 10


@pytest.mark.parametrize("first", range(SEEDS_TO_EVERYTHING, SEEDS, BATCH_SEEDS))
def test_promises_hold_after_any_fault(first: int) -> None:
    """`test_the_plays_cover_every_event` plays the seeds before these."""
    for seed in range(first, first + BATCH_SEEDS):
        play(seed)


def test_an_expired_key_brought_by_swapdb_is_no_change_for_watch() -> None:
    """The model once judged otherwise."""
    play(30003)


@pytest.mark.parametrize("seed", [50095, 51605])
def test_requests_held_by_a_slow_disk_wait_for_earlier_replies(seed: int) -> None:
    """The model once ran them as soon as the disk had caught up, or in another order."""
    play(seed)


def test_a_seed_always_plays_the_same() -> None:
    traces = [play(seed) for seed in range(4)]
    assert traces == [play(seed) for seed in range(4)]
    assert len(set(traces)) == 4


def test_a_seed_plays_the_same_in_another_process() -> None:
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-m", "tests.sim", "3"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"seed 3: {play(3)}" in run.stdout


def test_a_failure_names_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(simulation: Simulation) -> None:
        raise BrokenPromise("nothing is checked")

    monkeypatch.setattr(Simulation, "_check_quiet", broken)
    with pytest.raises(SimulationFailure, match=r"python -m tests\.sim 7 --steps 400"):
        play(7)


def test_the_history_is_checked_after_every_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """The history alone detects a server that loses acknowledged data."""
    monkeypatch.setattr(simulation_module, "found_in", lambda data: {})
    seeds = filter(one_database_always, range(50))
    with pytest.raises(SimulationFailure, match="BrokenHistory"):
        list(map(play, seeds))


def test_a_server_that_evicts_the_wrong_blocks_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction_module, "oldest_block_ms", youngest_first)
    profiles = {seed: Simulation(seed).profile for seed in range(200)}
    # Workers leave entries that wait, and the states differ before the eviction is judged.
    seeds = [s for s, one in profiles.items() if one.memory == "evicts" and one.roles != WORKERS]
    with pytest.raises(SimulationFailure, match="of the blocks that end at"):
        list(map(play, seeds))


def youngest_first(stream: Stream) -> int | None:
    moment_ms = oldest_block_ms(stream)
    return None if moment_ms is None else -moment_ms


def test_released_memory_is_freed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction_module, "free_step", lambda most: False)
    seeds = [seed for seed in range(300) if Simulation(seed).profile.memory]
    with pytest.raises(SimulationFailure, match="released memory goes first"):
        list(map(play, seeds))


def test_a_server_that_applies_changed_rules_late_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that keeps blocked reads, or looks at rules only when a request is queued, fails."""
    seeds = [seed for seed in range(200) if seed % USER_SEEDS == 3]
    monkeypatch.setattr(Access, "_enforce", lambda access, client: None)
    with pytest.raises(SimulationFailure):
        list(map(play, seeds))
    monkeypatch.undo()
    refusal = Access.refusal

    def only_before_exec(access: Access, *given: Any) -> Any:
        at_exec = given[-1]
        return None if at_exec else refusal(access, *given)

    monkeypatch.setattr(Access, "refusal", only_before_exec)
    with pytest.raises(SimulationFailure):
        list(map(play, range(303, 400, USER_SEEDS)))


def one_database_always(seed: int) -> bool:
    profile = Simulation(seed).profile
    return profile.databases == 1 and profile.fsync == "always"


EVENTS = {
    "send", "loop", "worker", "time", "settle", "restart", "crash", "kill", "arm", "survived",
    "join", "leave", "clock jumps", "disk", "closed", "stops reading", "reads again", "flip",
    "refused", "limit", "no memory", "dropped", "freed", "freed in part", "judged",
    "did not wait", "no key", "no command", "rules changed before EXEC",
}  # fmt: skip
EFFECTS = {
    b"STREAM", b"APPEND", b"EVICT", b"XDEL", b"GROUP", b"GROUPTTL", b"GROUPDROP", b"DELIVER",
    b"REDELIVER", b"ACK", b"CONSUMER", b"SET", b"DEL", b"FLUSHDB", b"FLUSHALL", b"SELECT",
    b"UPDATE", b"EXTEND", b"EXPIRE", b"RENAME", b"COPY", b"SWAPDB", b"CLAIM", b"RELEASE",
    b"SEEN", b"CONSUMERDROP", b"GROUPSETID", b"IDMP", b"IDMPREPEAT", b"IDMPSET", b"POLICY",
    b"APPENDONCE", b"PRODUCERDROP", b"GROUPRULES", b"TAKE", b"WAIT", b"DEADLINE", b"DEAD",
    b"SCHEDULE", b"UNSCHEDULE", b"FIRE",
}  # fmt: skip


def test_the_plays_cover_every_event() -> None:
    events: set[str] = set()
    effects: set[bytes] = set()
    for seed in range(SEEDS_TO_EVERYTHING):
        simulation = Simulation(seed)
        simulation.run()
        events |= set(simulation.counts)
        effects |= simulation.effects
    assert EVENTS - events == set()
    assert EFFECTS - effects == set()

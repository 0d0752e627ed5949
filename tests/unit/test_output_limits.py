"""client-output-buffer-limit: the clients that it closes, and the times."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.in_process import InProcessClient, InProcessServer, Journal
from tests.support.resp import encode_command

from millstream.commands.runtime.context import Session
from millstream.server.config.directives import Config
from millstream.server.config.kinds import OutputLimit
from millstream.server.protocol.output_limits import OutputLimits


class Client(Session):
    output_bytes = 0


class Guard:
    """Limits of the class `pubsub` alone, one client, and a clock that is moved."""

    def __init__(self, hard_bytes: int, soft_bytes: int = 0, soft_s: int = 0) -> None:
        config, self.now_s = Config(), 0.0
        config.client_output_buffer_limit = {
            "normal": OutputLimit(0, 0, 0),
            "slave": OutputLimit(1, 1, 0),
            "pubsub": OutputLimit(hard_bytes, soft_bytes, soft_s),
        }
        self.limits = OutputLimits(config, lambda: self.now_s)
        self.client = Client(1)
        self.client.channels[b"news"] = None

    def is_exceeded(self, output_bytes: int, after_s: float = 0) -> bool:
        self.now_s += after_s
        self.client.output_bytes = output_bytes
        client: Any = self.client
        return self.limits.is_exceeded(client)


def test_the_hard_limit_holds_at_once() -> None:
    guard = Guard(1000)
    assert not guard.is_exceeded(999)
    assert guard.is_exceeded(1000)


@pytest.mark.parametrize("subscription", ["channels", "patterns", ""])
def test_the_subscriptions_determine_the_class(subscription: str) -> None:
    guard = Guard(1000)
    guard.client.channels.clear()
    if subscription:
        getattr(guard.client, subscription)[b"x"] = None
    assert guard.is_exceeded(10**9) == bool(subscription)


def test_the_soft_limit_holds_after_its_time() -> None:
    guard = Guard(0, 1000, 10)
    assert not guard.is_exceeded(1000)
    assert not guard.is_exceeded(5000, after_s=9.9)
    assert guard.is_exceeded(1000, after_s=0.1)


def test_the_soft_limits_time_restarts_after_a_time_below_it() -> None:
    guard = Guard(0, 1000, 10)
    assert not guard.is_exceeded(1000)
    assert not guard.is_exceeded(999, after_s=9)
    assert not guard.is_exceeded(1000, after_s=9)
    assert not guard.is_exceeded(1000, after_s=9)
    assert guard.is_exceeded(1000, after_s=1)


def test_a_forgotten_client_begins_again() -> None:
    guard = Guard(0, 1000, 10)
    assert not guard.is_exceeded(1000)
    client: Any = guard.client
    guard.limits.forget(client)
    assert not guard.is_exceeded(1000, after_s=10)


def test_zero_is_no_limit() -> None:
    guard = Guard(0, 0, 0)
    assert not guard.is_exceeded(2**40)
    assert not guard.is_exceeded(2**40, after_s=1000)


@pytest.mark.parametrize(
    ("config", "least_bytes"),
    [
        ({"normal": (0, 0, 0), "pubsub": (0, 0, 0)}, 2**64 - 1),
        ({"normal": (0, 0, 0), "pubsub": (500, 100, 1)}, 100),
        ({"normal": (50, 0, 0), "pubsub": (500, 100, 1)}, 50),
    ],
)
def test_below_the_smallest_limit_no_client_is_checked(
    config: dict[str, tuple[int, int, int]], least_bytes: int
) -> None:
    directives = Config()
    directives.client_output_buffer_limit = {
        kind: OutputLimit(*numbers) for kind, numbers in config.items()
    }
    assert OutputLimits(directives, lambda: 0.0).least_bytes == least_bytes


# ---------------------------------------------------------------- held output


LEAST_BYTES = 10_000
MESSAGE = b"x" * 1000


class NeverDurable(Journal):
    def commit(self, payload: bytes | None) -> int:
        self.last_seq += 1
        return self.last_seq


def watched(in_process: InProcessServer) -> list[tuple[InProcessClient, int]]:
    """The clients that the outbox asks about, and the bytes that are held then."""
    asked: list[tuple[InProcessClient, int]] = []
    in_process.executor.outbox.least_limit_bytes = LEAST_BYTES
    in_process.executor.outbox.check_output = lambda client: asked.append(
        (client, client.held_bytes)
    )
    return asked


def test_messages_after_a_long_reply_are_checked_on_arrival() -> None:
    in_process = InProcessServer()
    writer, reader = in_process.player(), in_process.player()
    for number in range(1, 301):
        writer.call(f"XADD s {number}-1 n {'v' * 2000}")
    asked = watched(in_process)
    reader.paused = True
    in_process.executor.feed(reader, encode_command(["XRANGE", "s", "-", "+"]))
    in_process.executor.end_tick()
    reader.paused = False
    for _ in range(12):
        in_process.executor.push_encoded(reader, MESSAGE)
    assert asked == [(reader, size) for size in (10_000, 11_000, 12_000)]
    assert reader in in_process.executor.outbox.lagging


def test_held_output_is_checked_as_it_grows() -> None:
    in_process = InProcessServer(NeverDurable())
    writer, reader = in_process.player(), in_process.player()
    asked = watched(in_process)
    writer.send("SET a 1")
    held = writer.held_bytes
    for _ in range(12):
        in_process.executor.push_encoded(reader, MESSAGE)
        in_process.settle()
    assert asked == [(reader, size) for size in (10_000, 11_000, 12_000)]
    assert writer.held_bytes == held
    assert in_process.executor.outbox.lagging == {reader}


def test_a_client_that_reads_everything_is_not_lagging() -> None:
    in_process = InProcessServer()
    asked = watched(in_process)
    in_process.executor.outbox.least_limit_bytes = 1 << 20
    player = in_process.player()
    for _ in range(100):
        assert player.call(f"SET k {'v' * 20_000}") is not None
    assert not asked
    assert not in_process.executor.outbox.lagging

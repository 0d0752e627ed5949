"""Requests for slots that are being handed over wait, run again, or are refused after a while."""

from __future__ import annotations

from typing import Any

from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Null, Simple

from millstream.server.cluster.slot_moves.slot_clients import (
    end_shard_subscriptions,
    end_waits,
    fail_watches,
)
from millstream.server.execution import slot_parking
from millstream.server.execution.pubsub import PubSub
from millstream.server.execution.slot_check import SlotCheck
from millstream.server.execution.slot_parking import SlotParking
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS, cluster_slot_of

KEY, OTHER = "{a}key", "b"
SLOT = cluster_slot_of(b"a")
TRYAGAIN = Error(f"TRYAGAIN slot {SLOT} is being handed over")
MOVED = Error(f"MOVED {SLOT} there:1")


class Node(InProcessServer):
    def __init__(self) -> None:
        super().__init__(clustered=True)
        self.slots = SlotCheck(self)
        self.parking = SlotParking(self.executor, lambda: 2000)
        self.slots.park_in(self.parking)
        self.executor.admission.set_slots(self.slots)
        self.serve()

    def serve(self) -> None:
        self.slots.own(range(CLUSTER_SLOTS))
        self.parking.set_slots(())

    def begin_leaving(self) -> None:
        self.slots.own(set(range(CLUSTER_SLOTS)) - {SLOT})
        self.parking.set_slots({SLOT})

    def move(self) -> None:
        self.slots.own(set(range(CLUSTER_SLOTS)) - {SLOT})
        self.parking.set_slots(())
        self.settle()

    def may_read(self, session: Any, slot: int) -> bool:
        return False

    def unserved_slot(self, slot: int) -> str | None:
        return None

    def foreign_slot(self, session: Any, slot: int) -> str:
        return f"MOVED {slot} there:1"


def waits(player: InProcessClient) -> bool:
    return not player.unread


def test_a_request_waits_and_runs_when_the_slot_is_served_again() -> None:
    node = Node()
    player, other = node.player(), node.player()
    node.begin_leaving()
    player.send(f"SET {KEY} 1")
    player.send(f"GET {KEY}")
    assert waits(player)
    assert node.executor.blocked_count == 1
    assert other.call(f"SET {OTHER} 2") == Simple("OK")
    node.serve()
    node.settle()
    assert [player.read(), player.read()] == [Simple("OK"), b"1"]
    assert node.executor.blocked_count == 0


def test_a_request_waits_and_is_sent_to_the_new_owner() -> None:
    node = Node()
    player = node.player()
    node.begin_leaving()
    player.send(f"SET {KEY} 1")
    assert waits(player)
    node.move()
    assert player.read() == MOVED
    assert player.call(f"GET {KEY}") == MOVED


def test_a_request_is_refused_after_the_timeout() -> None:
    node = Node()
    player, late = node.player(), node.player()
    node.begin_leaving()
    player.send(f"GET {KEY}")
    node.wait_ms(1999)
    late.send(f"GET {KEY}")
    assert waits(player)
    assert waits(late)
    node.wait_ms(1)
    assert [player.read(), late.read()] == [TRYAGAIN, TRYAGAIN]
    assert player.call(f"GET {KEY}") == TRYAGAIN
    node.serve()
    node.begin_leaving()  # another hand-over
    player.send(f"GET {KEY}")
    assert waits(player)


def test_too_many_bytes_do_not_wait(monkeypatch: Any) -> None:
    monkeypatch.setattr(slot_parking, "PARKED_BYTES_MAX", 100)
    node = Node()
    node.begin_leaving()
    players = [node.player() for _ in range(3)]
    for player in players:
        player.send(f"SET {KEY} {'x' * 35}")  # 45 bytes
    assert [waits(player) for player in players] == [True, True, False]
    assert players[2].read() == TRYAGAIN
    node.executor.detach(players[0])
    players[2].send(f"SET {KEY} {'x' * 35}")
    assert waits(players[2])
    node.serve()
    node.settle()
    assert [players[1].read(), players[2].read()] == [Simple("OK"), Simple("OK")]


def test_a_transaction_waits_as_a_whole() -> None:
    node = Node()
    player, second = node.player(), node.player()
    assert player.call("MULTI") == Simple("OK")
    assert player.call(f"SET {KEY} 1") == Simple("QUEUED")
    node.begin_leaving()
    player.send("EXEC")
    assert second.call("MULTI") == Simple("OK")
    second.send(f"SET {KEY} 2")
    assert waits(player)
    assert waits(second)
    node.serve()
    node.settle()
    assert player.read() == [Simple("OK")]
    assert second.read() == Simple("QUEUED")
    node.begin_leaving()
    second.send("EXEC")
    node.move()
    assert second.read() == MOVED
    assert second.call("EXEC") == Error("ERR EXEC without MULTI")


def test_a_flush_waits_for_the_leaving_slots() -> None:
    """Their keys would be left out here, and be there again at the new owner."""
    node = Node()
    player, second = node.player(), node.player()
    assert player.call(f"SET {KEY} 1") == Simple("OK")
    assert second.call("MULTI") == Simple("OK")
    node.begin_leaving()
    player.send("FLUSHALL")
    assert second.call("FLUSHDB") == Simple("QUEUED")
    second.send("EXEC")
    assert waits(player)
    assert waits(second)
    node.serve()
    node.settle()
    assert player.read() == Simple("OK")
    assert second.read() == [Simple("OK")]
    assert player.call("DBSIZE") == 0
    node.begin_leaving()
    node.wait_ms(2000)
    assert player.call("FLUSHALL") == TRYAGAIN
    node.move()
    assert player.call("FLUSHALL") == Simple("OK")


def test_clients_of_the_slot_learn_of_the_new_owner() -> None:
    node = Node()
    node.pubsub = PubSub(node.executor.push_encoded)
    reader, other, watching, listener = (node.player() for _ in range(4))
    reader.send(f"XREAD BLOCK 0 STREAMS {KEY} $")
    other.send(f"XREAD BLOCK 0 STREAMS {OTHER} $")
    assert watching.call(f"WATCH {KEY}") == Simple("OK")
    assert watching.call("MULTI") == Simple("OK")
    assert listener.call("SSUBSCRIBE {a}news") == [b"ssubscribe", b"{a}news", 1]
    assert listener.call("SSUBSCRIBE b") == [b"ssubscribe", b"b", 2]
    node.move()
    end_waits(node.executor, {one.id: one for one in (reader, other)}, {SLOT}, node.foreign_slot)
    end_shard_subscriptions(node.executor, node.pubsub, {SLOT})
    fail_watches(node.keyspace, {SLOT})
    node.settle()
    assert reader.read() == MOVED
    assert waits(other)
    assert watching.call("EXEC") is Null.ARRAY
    assert listener.read() == [b"sunsubscribe", b"{a}news", 1]
    assert node.pubsub.shard_channels() == [b"b"]

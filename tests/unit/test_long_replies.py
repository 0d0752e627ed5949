"""Replies too long to make at once go out in slices, as they were when they were asked for."""

from __future__ import annotations

import pytest
from tests.support.house import House, Player
from tests.support.resp import Map, Reply, encode_command

SLICE_MAX_BYTES = 3 * 262_144
COUNT = 300
VALUE = b"v" * 2000


class Listener(Player):
    """Notes the size of everything it is sent at once."""

    def __init__(self, house: House, resp: int) -> None:
        super().__init__(house, resp)
        self.sizes: list[int] = []

    def transmit(self, data: bytes) -> int:
        self.sizes.append(len(data))
        return super().transmit(data)


def listener(house: House, resp: int = 2) -> Listener:
    made = Listener(house, resp)
    house.players.append(made)
    house.executor.attach(made)
    return made


def fill(house: House, key: str, count: int) -> None:
    player = house.player()
    for number in range(1, count + 1):
        house.executor.feed(
            player, encode_command(["XADD", key, f"{number}-1", "n", VALUE.decode()])
        )
    house.settle()
    player.unread = b""


def entries(first: int, last: int) -> list[Reply]:
    return [[b"%d-1" % number, [b"n", VALUE]] for number in range(first, last + 1)]


@pytest.mark.parametrize("resp", [2, 3])
def test_xread_of_several_long_streams_goes_out_in_slices(house: House, resp: int) -> None:
    for key, count in (("a", COUNT), ("few", 3), ("b", COUNT), ("c", COUNT)):
        fill(house, key, count)
    reader = listener(house, resp)
    other = house.player()
    command = ["XREAD", "STREAMS", "a", "few", "none", "b", "c", "0", "1-1", "0", "5-1", "0"]
    house.executor.feed(reader, encode_command(command))
    house.executor.end_tick()
    # What happens to the streams between two slices does not change the reply.
    house.executor.feed(other, encode_command(["XDEL", "b", "7-1"]))
    house.executor.feed(other, encode_command(["XADD", "b", "*", "n", "late"]))
    house.executor.feed(other, encode_command(["DEL", "c"]))
    house.settle()
    wanted: list[tuple[bytes, list[Reply]]] = [
        (b"a", entries(1, COUNT)),
        (b"few", entries(2, 3)),
        (b"b", entries(6, COUNT)),
        (b"c", entries(1, COUNT)),
    ]
    reply = reader.read()
    if resp == 3:
        assert reply == Map(wanted)
    else:
        assert reply == [[key, found] for key, found in wanted]
    assert not reader.unread
    assert max(reader.sizes) < SLICE_MAX_BYTES


def test_xread_of_several_long_streams_stops_at_its_count(house: House) -> None:
    for key in ("a", "b", "c"):
        fill(house, key, COUNT)
    reader = listener(house)
    reply = reader.call(f"XREAD COUNT {COUNT - 1} STREAMS a b c 0 0 2-1")
    assert reply == [
        [b"a", entries(1, COUNT - 1)],
        [b"b", entries(1, COUNT - 1)],
        [b"c", entries(3, COUNT)],
    ]
    assert max(reader.sizes) < SLICE_MAX_BYTES
    assert reader.call("PING") is not None


def test_xread_of_many_small_streams_goes_out_in_slices(house: House) -> None:
    keys = [f"key-{number}" for number in range(200)]
    for key in keys:
        fill(house, key, 4)
    reader = listener(house)
    reply = reader.call(f"XREAD STREAMS {' '.join(keys)} {' '.join('0' for _ in keys)}")
    assert reply == [[key.encode(), entries(1, 4)] for key in keys]
    assert max(reader.sizes) < SLICE_MAX_BYTES


@pytest.fixture
def house() -> House:
    return House()

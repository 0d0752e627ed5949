"""An append with a producer's number that runs out of memory: the entry and its number are both
there or neither is, so that a request that is sent again appends every entry once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.in_process import InProcessServer
from tests.support.resp import Error

from millstream.storage.streams.idempotence import Window
from millstream.storage.streams.producers import Producers


def fails_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """The next call raises MemoryError."""
    real: Callable[..., Any] = getattr(owner, name)

    def failing(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        raise MemoryError

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize(
    ("owner", "name", "line", "entries"),
    [
        (Producers, "put", "TAPPENDONCE s PRODUCER p 7 n 1", 1),
        (Producers, "put", "TAPPENDMANY 1 s PRODUCER p 2 7 1 n 1 8 1 n 2", 2),
        (Window, "put", "XADD s IDMP p 7 * n 1", 1),
        (Window, "_names_to_change", "XADD s IDMP p 7 * n 1", 1),
    ],
)
def test_an_entry_whose_number_is_not_recorded_is_not_appended(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, line: str, entries: int
) -> None:
    in_process = InProcessServer()
    player = in_process.player()
    player.call("TAPPENDONCE s PRODUCER other 1 n 0")
    player.call("XADD s IDMP other 1 * n 0")
    fails_once(monkeypatch, owner, name)
    assert player.call(line) == Error("OOM out of memory")
    assert player.call("XLEN s") == 2
    recorded = len(in_process.persistence.payloads)
    player.call(line)
    assert player.call("XLEN s") == 2 + entries
    assert len(in_process.persistence.payloads) == recorded + 1
    player.call(line)
    assert player.call("XLEN s") == 2 + entries


class FullDict(dict[bytes, int]):
    """There is no memory for a new key."""

    def __setitem__(self, name: bytes, seq: int) -> None:
        if name not in self:
            raise MemoryError
        super().__setitem__(name, seq)


@pytest.mark.parametrize("name", [b"a", b"new"])
def test_a_number_that_cannot_be_set_changes_no_number(name: bytes) -> None:
    producers = Producers()
    producers.put(b"a", 1)
    producers.put(b"b", 2)
    producers._seqs = FullDict(producers._seqs)
    with pytest.raises(MemoryError):
        producers.put(name, 5)
    assert len(producers) == 2
    assert b"a" in producers
    producers._seqs = dict(producers._seqs)  # there is memory again
    assert not producers.has_sent(b"a", 2)
    assert producers.has_sent(b"a", 1)
    producers.check()
    assert producers.dump() == {b"a": 1, b"b": 2}


@pytest.mark.parametrize("before", [None, 1])
def test_a_number_is_restored_when_its_append_fails(before: int | None) -> None:
    producers = Producers()
    if before is not None:
        producers.put(b"a", before)
    producers.put_back(b"a", producers.put(b"a", 5))
    producers.check()
    assert producers.dump().get(b"a") == before


def test_a_message_is_forgotten_when_its_append_fails() -> None:
    window = Window()
    window.put(b"p", b"1", (1, 1), 1)
    window.put_back(b"p", b"1")
    window.check()
    assert window.is_blank()

"""Effects applied to a keyspace that is in use: a snapshot is being taken, readers wait."""

from __future__ import annotations

import pytest
from tests.support.captures import each
from tests.support.in_process import InProcessServer
from tests.support.resp import encode_command

from millstream.commands.runtime.effects import apply_effects
from millstream.storage.capture.capture import Capture
from millstream.storage.capture.captured_keys import Captured
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.keyspace.keyspace import HISTORIES_MAX, Keyspace


def effect(*words: str) -> bytes:
    return encode_command(words)


def apply(server: InProcessServer, *words: str) -> None:
    apply_effects(server.keyspace, effect(*words))


@pytest.mark.parametrize(
    "words",
    [
        ("EVICT", "s", "+"),
        ("XDEL", "s", "1-1"),
        ("GROUP", "s", "late", "0-0", "0", "0"),
        ("GROUPDROP", "s", "g"),
        ("DELIVER", "s", "g", "", "1-1", "1-1", "1", "1", "-", "-", "keep"),
        ("ACK", "s", "g", "1-1"),
        ("APPEND", "s", "2-1", "f", "v"),
        ("DEL", "s"),
    ],
    ids=lambda words: words[0],
)
def test_a_capture_shows_a_stream_as_it_was_before_the_effect(words: tuple[str, ...]) -> None:
    server = InProcessServer()
    player = server.player()
    player.call("XADD s 1-1 f v")
    player.call("XGROUP CREATE s g 0")
    untouched = captured(server)
    capture = Capture(server.keyspace)
    apply(server, *words)
    found = [shown(one) for one in each(capture.step(10))]
    capture.close()
    assert found == untouched


def captured(server: InProcessServer) -> list[object]:
    capture = Capture(server.keyspace)
    try:
        return [shown(one) for one in each(capture.step(10))]
    finally:
        capture.close()


def shown(one: Captured) -> object:
    return one.key, one.meta, [block.to_bytes() for block in one.blocks]


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ("XREAD BLOCK 0 STREAMS s $", ("APPEND", "s", "5-1", "f", "v")),
        ("TREAD s 1.1 10 BLOCK 0", ("APPEND", "s", "5-1", "f", "v")),
        ("XREAD BLOCK 0 STREAMS s $", ("APPENDONCE", "s", "5-1", "p", "1", "f", "v")),
    ],
)
def test_an_applied_entry_wakes_the_readers_that_wait_for_it(
    read: str, words: tuple[str, ...]
) -> None:
    server = InProcessServer()
    player = server.player()
    player.call("XADD s 1-1 f v")
    player.send(read)
    assert not player.unread
    apply(server, *words)
    server.executor.applied()
    server.settle()
    assert b"5-1" in player.unread or b"5.1" in player.unread


def test_a_history_is_stored_with_the_number_of_its_first_frame() -> None:
    keyspace = Keyspace()
    apply_effects(keyspace, effect("HISTORY", "a" * 40, "1"))
    apply_effects(keyspace, effect("HISTORY", "b" * 40, "7"))
    assert keyspace.histories == (("a" * 40, 1), ("b" * 40, 7))
    again = Keyspace()
    StoredKeyspace(again).restore_global(StoredKeyspace(keyspace).global_meta())
    assert again.histories == keyspace.histories


def test_only_the_newest_histories_are_remembered() -> None:
    keyspace = Keyspace()
    for number in range(HISTORIES_MAX + 4):
        keyspace.begin_history(f"{number:040x}", number + 1)
    assert len(keyspace.histories) == HISTORIES_MAX
    assert keyspace.histories[-1][1] == HISTORIES_MAX + 4


def test_a_history_replaces_those_that_begin_at_or_after_it() -> None:
    keyspace = Keyspace()
    for name, first_seq in (("a", 1), ("b", 5), ("c", 9), ("d", 5)):
        keyspace.begin_history(name, first_seq)
    assert keyspace.histories == (("a", 1), ("d", 5))

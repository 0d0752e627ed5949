"""The error of an effect that cannot be applied has its place in the frame and the reason."""

from __future__ import annotations

import pytest
from tests.support.resp import encode_command

from millstream.commands.runtime.effects import APPLY, EffectError, Effects, apply_effects
from millstream.storage.keyspace.keyspace import Keyspace

SOUND = encode_command(["STREAM", "s", "1"])


def refusal(*words: str) -> str:
    """The error for this effect, which follows a sound one."""
    with pytest.raises(EffectError) as caught:
        apply_effects(Keyspace(), SOUND + encode_command(words))
    assert caught.value.offset == len(SOUND)
    return str(caught.value)


def test_an_effect_of_a_later_version_is_named() -> None:
    assert refusal("LATER", "s") == "effect b'LATER' is not known to this version"


def test_a_known_effect_that_fails_is_not_called_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(keyspace: Keyspace, db_index: int, words: list[bytes]) -> None:
        raise KeyError(words[0])

    monkeypatch.setitem(APPLY, b"KNOWN", fail)
    assert refusal("KNOWN", "s") == "KeyError: b's'"


def test_an_effect_on_a_missing_object_names_it() -> None:
    assert refusal("EVICT", "t", "1-1") == "key b't' has no stream"
    assert refusal("ACK", "s", "g", "1-1") == "stream b's' has no group b'g'"
    assert refusal("XDEL", "s", "x") == "b'x' is not an id"


def record_half(effects: Effects) -> None:
    """An effect that fails before its last word."""
    with pytest.raises(TypeError):
        effects.record(1, b"SET", b"k", "no bytes")  # type: ignore[arg-type]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("after", [0, 1])
def test_a_tick_with_half_an_effect_has_no_payload(before: int, after: int) -> None:
    effects = Effects()
    for _ in range(before):
        effects.record(0, b"SET", b"a", b"1")
    record_half(effects)
    for _ in range(after):
        effects.record(0, b"SET", b"b", b"2")
    assert len(effects)
    assert effects.take_payload() is None
    assert not len(effects)


def test_the_tick_after_half_an_effect_is_whole() -> None:
    effects = Effects()
    record_half(effects)
    effects.take_payload()
    effects.record(1, b"SET", b"k", b"v")
    wanted = encode_command(["SELECT", "1"]) + encode_command(["SET", "k", "v"])
    assert effects.take_payload() == wanted


def test_a_large_tick_leaves_space_for_the_next() -> None:
    effects = Effects()
    effects.record(0, b"SET", b"k", b"v" * (1 << 20))
    effects.take_payload()
    record_half(effects)
    assert len(effects)

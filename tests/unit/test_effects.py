"""Effects that cannot be applied say where they stand in the frame and what is wrong with them."""

from __future__ import annotations

import pytest
from tests.support.resp import encode_command

from millstream.commands.effects import APPLY, EffectError, apply_effects
from millstream.storage.keyspace import Keyspace

SOUND = encode_command(["STREAM", "s", "1"])


def refusal(*words: str) -> str:
    """What is said of this effect, which stands behind a sound one."""
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


def test_an_effect_on_what_is_not_there_says_what_is_missing() -> None:
    assert refusal("EVICT", "t", "1-1") == "key b't' has no stream"
    assert refusal("ACK", "s", "g", "1-1") == "stream b's' has no group b'g'"
    assert refusal("XDEL", "s", "x") == "b'x' is not an id"

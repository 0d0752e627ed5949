"""The error of an effect that cannot be applied has its place in the frame and the reason."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.replay import effects_of
from tests.support.effort import examples
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.journals import as_resp
from tests.support.resp import encode_command

from millstream.commands.runtime.effects import (
    APPLY,
    CODES,
    EffectError,
    Effects,
    apply_effects,
    split_effects,
)
from millstream.storage.files import frame_times
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
    payload = effects.take_payload()
    assert payload == b"\x03\x01\x01\x01" + b"\x24\x02\x03k\x03v"
    assert as_resp(payload) == (encode_command(["SELECT", "1"]) + encode_command(["SET", "k", "v"]))


def test_a_large_tick_leaves_space_for_the_next() -> None:
    effects = Effects()
    effects.record(0, b"SET", b"k", b"v" * (1 << 20))
    effects.take_payload()
    record_half(effects)
    assert len(effects)


# The two forms of effects


def test_an_append_of_short_words_takes_16_bytes(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("XADD s 1800000000000-0 f v")
    in_process.persistence.payloads.clear()
    player.call("XADD s 1800000000001-0 f v")
    assert [len(payload) for payload in in_process.persistence.payloads] == [16]


def recorded(effects: list[tuple[int, list[bytes | int]]]) -> bytes:
    made = Effects()
    for db, words in effects:
        made.record(db, *words)
    payload = made.take_payload()
    assert payload is not None
    return payload


NAMES = st.sampled_from([*CODES, b"LATER"]).filter(lambda name: name != b"SELECT")
WORDS = st.lists(
    st.one_of(
        st.binary(max_size=200), st.integers(-(2**63), 2**64 - 1), st.sampled_from([b"", b"*"])
    ),
    max_size=70,
)


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.integers(0, 300), NAMES, WORDS), min_size=1, max_size=5))
def test_both_forms_have_the_same_words(found: list[tuple[int, bytes, list[bytes | int]]]) -> None:
    effects = [(db, [name, *words]) for db, name, words in found]
    wanted = [
        (db, [b"%d" % w if isinstance(w, int) else w for w in words]) for db, words in effects
    ]
    coded = recorded(effects)
    resp = as_resp(coded)
    assert [(db, words) for db, words, _ in split_effects(coded)] == wanted
    assert [(db, words) for db, words, _ in split_effects(resp)] == wanted
    assert as_resp(resp) == resp
    assert list(effects_of(coded)) == list(effects_of(resp))  # the reader of the simulation
    for db, words, single in split_effects(coded):
        assert [(db, words)] == [(n, w) for n, w, _ in split_effects(single)]


WELL_FORMED = [
    b"\x04\x02\x03s\x01\x01",
    b"\x05\x04\x03s\x00\x05\x00\x03f\x03v",
    b"\x18\x05\x03s\x03g\x00\x00\x00\x01\x00\x01\x00",
    b"\x1c\x04\x03s\x03g\x03c\x01\x07",
    b"\x1e\x0a\x03s\x03g\x03c\x00\x05\x00\x00\x05\x00\x01\x07\x01\x01\x03-\x03-\x06keep",
    b"\x06\x06\x03s\x00\x06\x00\x03p\x01\x05\x03f\x03v",
    b"\x22\x03\x03s\x03g\x00\x05\x00",
    b"\x24\x02\x03k\x03v",
]


def test_well_formed_effects_apply() -> None:
    assert apply_effects(Keyspace(), b"".join(WELL_FORMED)) == len(WELL_FORMED)


@settings(max_examples=examples(400))
@given(
    st.integers(0, sum(map(len, WELL_FORMED)) - 1), st.integers(0, 255), st.booleans(), st.binary()
)
def test_damaged_effects_are_refused_or_applied(at: int, byte: int, cut: bool, more: bytes) -> None:
    """Any bytes lead to an EffectError or to words, never to memory outside the payload. A word
    that should be text may be an ID or a number."""
    payload = bytearray(b"".join(WELL_FORMED))
    payload[at] = byte
    if cut:
        payload = payload[: at + 1] + more
    with suppress(EffectError):
        apply_effects(Keyspace(), bytes(payload))
    with suppress(EffectError):
        found = split_effects(bytes(payload))
        assert sum(len(word) for _, words, _ in found for word in words) < 100 * len(payload)


def test_an_unknown_code_is_named() -> None:
    with pytest.raises(EffectError, match="the effect with code 126 is not known to this version"):
        apply_effects(Keyspace(), b"\x7e\x00")


def test_codes_are_different_and_none_is_that_of_resp() -> None:
    codes = list(CODES.values())
    assert len(codes) == len(set(codes))
    assert all(0 < code < 128 and code != ord("*") for code in codes)


@pytest.mark.parametrize("form", [bytes, as_resp])
def test_the_first_effects_of_a_frame_are_effects(form: Callable[[bytes], bytes]) -> None:
    name, after = b"0123456789" * 4, b"\x24\x02\x03k\x03v"
    line = form(frame_times.encode_line(name, 300))
    time = form(frame_times.encode_time(1_800_000_000))
    assert [words for _, words, _ in split_effects(line + time + after)] == [
        [b"HISTORY", name, b"300"],
        [b"TIME", b"1800000000"],
        [b"SET", b"k", b"v"],
    ]
    assert frame_times.time_of(line + time + after) == frame_times.time_of(time) == 1_800_000_000
    assert frame_times.time_of(line + after) is None
    assert frame_times.time_of(after) is None
    assert frame_times.begins_line(line + after)
    assert not frame_times.begins_line(time + after)

"""Reservations: when leases are looked at, which readers wake, and tokens of TPEEK."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.in_process import InProcessServer
from tests.support.resp import Error, encode_command

from millstream.commands.runtime.effects import apply_effects
from millstream.ids import parse


def reservations(in_process: InProcessServer) -> int:
    held = in_process.stream().held
    assert held is not None
    return held.reservations


def test_tpeek_passes_an_aborted_id_after_a_run(player: Any) -> None:
    """The ID waited in the token; the entries before it have become a run with writers."""
    player.call("TRESERVE s other")
    ids = [entry_id.decode() for entry_id in player.call("TRESERVE s w COUNT 1200")]
    token = player.call("TPEEK s 0 10")[0].decode()
    for entry_id in ids[1:1001]:
        player.call(f"TCOMPLETE s w {entry_id} f v")
    player.call("TABORT s w " + " ".join(ids[1001:1100]))
    for entry_id in ids[1101:1130]:
        player.call(f"TCOMPLETE s w {entry_id} f v")
    token, entries = player.call(f"TPEEK s {token} 2000")
    assert entries == []
    player.call(f"TABORT s w {ids[0]}")
    token, entries = player.call(f"TPEEK s {token.decode()} 2000")
    assert [entry[0].decode() for entry in entries] == ids[1:1001]


def test_a_token_with_more_ids_than_the_maximum_is_refused(
    player: Any,
) -> None:
    token = "99999.0~" + ",".join(str(n) for n in range(1, 20_002))
    assert player.call(f"TPEEK s {token} 10") == Error("ERR invalid token")


def test_short_leases_leave_no_due_times(in_process: InProcessServer, player: Any) -> None:
    """A stream with a long lease keeps one due time while short leases come and go."""
    player.call("TRESERVE s long LEASE 50000")
    for _ in range(50):
        player.call("TRESERVE s short LEASE 10")
        in_process.wait_ms(20)
    assert reservations(in_process) == 1
    assert len(in_process.executor.timers) <= 2
    in_process.wait_ms(60_000)
    assert reservations(in_process) == 0


def test_replaying_reservations_notes_one_time(in_process: InProcessServer, player: Any) -> None:
    for _ in range(100):
        entry_id = player.call("TRESERVE s w").decode()
        player.call(f"TCOMPLETE s w {entry_id} f v")
    player.call("TRESERVE s w")
    assert len(in_process.replayed().timer_requests) <= 1


def test_a_reader_from_now_on_passes_runs(player: Any) -> None:
    """Entries that wait for their own writer are to come; those of others are passed over."""
    player.call("TRESERVE s first")
    ids = [entry_id.decode() for entry_id in player.call("TRESERVE s w COUNT 1100")]
    for number in range(1, 1100):
        player.call(f"TCOMPLETE s w {ids[number]} f v")
    for _ in range(1100):
        player.call("TAPPEND s f v")
    token = player.call("TPEEK s $ 10")[0].decode()
    assert len(token.split(",")) == 2 + 1099
    player.call(f"TABORT s w {ids[0]}")
    _, entries = player.call(f"TPEEK s {token} 5000")
    assert [entry[0].decode() for entry in entries] == ids[1:]


def test_a_gap_alone_does_not_end_a_wait(player: Any) -> None:
    """As for TREAD: the nil comes with the next entry."""
    entry_id = player.call("TAPPEND s f v").decode()
    player.call("TAPPEND s f v")
    player.call("XTRIM s MAXLEN 0")
    player.call("TRESERVE s w")
    place = player.call("TPEEK s $ 0")[0].decode()
    assert "~" in place
    player.send(f"TPEEK s {entry_id} 10 BLOCK 0")
    assert player.unread == b""


def test_a_reservation_wakes_waiters_for_another_position(
    in_process: InProcessServer, player: Any
) -> None:
    """The position of a writer without reservations is the last ID handed out."""
    waiting: Any = in_process.player()
    player.call("TAPPEND s f v")
    in_process.wait_ms(10)
    waiting.send(f"TPOSITION s WRITER other WAIT {in_process.wall_ms} 0")
    in_process.settle()
    assert waiting.unread == b""
    reserved = player.call("TRESERVE s w")
    in_process.settle()
    assert waiting.read() == reserved


def test_xsetid_wakes_waiters_for_the_position(in_process: InProcessServer, player: Any) -> None:
    waiting: Any = in_process.player()
    player.call("TAPPEND s f v")
    waiting.send("TPOSITION s WAIT 5000000000000 0")
    in_process.settle()
    player.call("XSETID s 6000000000000-0")
    in_process.settle()
    assert waiting.read() == b"6000000000000.0"


IDS = st.builds(
    lambda ms, seq: f"{ms}{seq}", st.integers(0, 2**70), st.sampled_from(["", ".0", "-7"])
)


@given(
    st.text(alphabet="0123456789.-~,$ \x00\xff", max_size=40)
    | st.builds(
        lambda place, waited: f"{place}~{','.join(waited)}", IDS, st.lists(IDS, max_size=50)
    )
)
@settings(max_examples=examples(500))
def test_any_token_is_read_right_or_refused(token: str) -> None:
    """An accepted token is an ID, and IDs up to it that rise; it comes back in its usual form
    when nothing can be returned."""
    in_process = InProcessServer()
    player = in_process.player()
    player.call("TRESERVE s w")
    request = [b"TPEEK", b"s", token.encode("latin-1"), b"0"]
    in_process.executor.feed(player, encode_command(request))
    in_process.settle()
    reply = player.read()
    if token in ("", "$"):
        assert reply[1] == []
        return
    place, _, waited = token.partition("~")
    ids = [read_id(text) for text in waited.split(",")] if "~" in token else []
    end = read_id(place)
    if end is None or None in ids or sorted(set(ids)) != ids or (ids and ids[-1] > end):
        assert reply == Error("ERR invalid token")
    else:
        texts = [f"{ms}.{seq}" for ms, seq in [end, *ids]]
        assert reply == ["~".join([texts[0], ",".join(texts[1:])][: 2 if ids else 1]).encode(), []]


def read_id(text: str) -> tuple[int, int] | None:
    try:
        return parse(text.encode("latin-1"))
    except ValueError:
        return None


def test_a_refused_reservation_names_its_number_of_ids(
    in_process: InProcessServer, player: Any
) -> None:
    in_process.keyspace.reservations_max = 5
    assert player.call("TRESERVE s w COUNT 6") == Error(
        "STALLED 0 IDs are reserved and 6 requested, at most 5 can be"
    )
    player.call("TRESERVE s w COUNT 4")
    assert player.call("TRESERVE s v COUNT 3").text.startswith(
        "STALLED 4 IDs are reserved and 3 requested, at most 5 can be; the oldest reservation is "
    )


def test_xadd_refuses_ids_up_to_the_last_reserved_one(player: Any) -> None:
    player.call("XADD s 5-0 f v")
    reserved = player.call("TRESERVE s w").decode().replace(".", "-")
    for entry_id in (reserved, "6-0", "5-0", "5-*"):
        assert player.call(f"XADD s {entry_id} f v") == Error(
            "ERR The ID specified in XADD is equal or smaller than the target stream top item"
        )


def test_a_replica_promises_no_more_than_its_primary() -> None:
    """The journal has a moment that is ahead of what the primary has promised."""
    primary, replica = InProcessServer(), InProcessServer()
    on_primary, on_replica = primary.player(), replica.player()
    on_primary.call("TCREATE s")
    promised = on_primary.call("TMREAD 10 CLOCK STREAMS s 0")[0][2]
    for payload in primary.persistence.payloads:
        apply_effects(replica.keyspace, payload)
    replica.replication.is_replica = True
    replica.wall_ms += 5000  # the clocks differ
    assert on_replica.call("TMREAD 10 CLOCK STREAMS s 0")[0][2] == promised
    primary.wall_ms += 10
    appended = on_primary.call("TAPPEND s n 1")
    assert parse(appended) > parse(promised)
    replica.replication.is_replica = False
    replica.wall_ms -= 5000
    assert parse(on_replica.call("TAPPEND s n 1")) > parse(appended)

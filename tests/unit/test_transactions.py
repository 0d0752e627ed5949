"""MULTI, EXEC, DISCARD and WATCH without sockets."""

from __future__ import annotations

import pytest
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.resp import Error, Null, Simple

from millstream.commands.admin import transactions
from millstream.commands.table.registry import COMMANDS, Command

OK = Simple("OK")
QUEUED = Simple("QUEUED")


@pytest.fixture
def alice(in_process: InProcessServer) -> InProcessClient:
    return in_process.player()


@pytest.fixture
def bob(in_process: InProcessServer) -> InProcessClient:
    return in_process.player()


def test_queued_requests_run_as_one(alice: InProcessClient, bob: InProcessClient) -> None:
    assert alice.call("MULTI") == OK
    assert alice.call("TAPPEND s a 1") == QUEUED
    assert alice.call("SET k v") == QUEUED
    assert bob.call("EXISTS s k") == 0
    first, second = alice.call("EXEC")
    assert first.endswith(b".0")
    assert second == OK
    assert bob.call("EXISTS s k") == 2


def test_the_effects_of_a_transaction_are_one_frame(
    in_process: InProcessServer, alice: InProcessClient
) -> None:
    for line in ("MULTI", "SET a 1", "SET b 2", "TAPPEND s f v", "EXEC"):
        alice.call(line)
    assert len(in_process.persistence.payloads) == 1


def test_a_refused_request_calls_it_off(alice: InProcessClient) -> None:
    for refused in ("NOSUCH a", "GET", "SAVE"):
        alice.call("MULTI")
        alice.call("SET k v")
        assert isinstance(alice.call(refused), Error)
        assert alice.call("EXEC") == Error(
            "EXECABORT Transaction discarded because of previous errors."
        )
    assert alice.call("EXISTS k") == 0


CONTAINERS = [row for row in COMMANDS.values() if row.subcommands or row.unlisted]
SUBCOMMANDS = [
    sub for row in CONTAINERS for sub in [*row.subcommands.values(), *row.unlisted.values()]
]


@pytest.mark.parametrize("row", CONTAINERS, ids=lambda row: row.name)
def test_an_unknown_subcommand_calls_it_off(alice: InProcessClient, row: Command) -> None:
    name = row.name.upper()
    for line in ("MULTI", "SET k v"):
        alice.call(line)
    assert alice.call(f"{name} FOO") == Error(f"ERR unknown subcommand 'FOO'. Try {name} HELP.")
    assert alice.call("EXEC") == Error(
        "EXECABORT Transaction discarded because of previous errors."
    )
    assert alice.call("EXISTS k") == 0


def test_a_subcommand_of_too_few_or_too_many_words_calls_it_off(alice: InProcessClient) -> None:
    for row in SUBCOMMANDS:
        words = row.name.split("|")
        if row.arity > 0:
            words += ["x"] * (row.arity - 1)  # one more than there may be
        elif len(words) >= -row.arity:
            continue
        alice.call("MULTI")
        alice.call("SET k v")
        wrong = f"ERR wrong number of arguments for '{row.name}' command"
        if row.known_after is not None:  # of nodes only
            wrong = f"ERR unknown subcommand '{words[1]}'. Try {words[0].upper()} HELP."
        assert alice.call(" ".join(words)) == Error(wrong)
        assert alice.call("EXEC") == Error(
            "EXECABORT Transaction discarded because of previous errors."
        )
        assert alice.call("EXISTS k") == 0


def test_an_unknown_subcommand_is_no_call(
    in_process: InProcessServer, alice: InProcessClient
) -> None:
    alice.call("COMMAND FOO")
    alice.call("XGROUP FOO")
    assert not {"command", "xgroup"} & set(in_process.executor.table.stats())
    assert in_process.executor.statistics.error_replies == 2


def test_a_request_that_fails_at_exec_does_not_abort_it(alice: InProcessClient) -> None:
    for line in ("SET k v", "MULTI", "SET a 1", "XLEN k", "SET b 2"):
        alice.call(line)
    first, second, third = alice.call("EXEC")
    assert (first, third) == (OK, OK)
    assert second.text.startswith("WRONGTYPE")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("EXEC", "ERR EXEC without MULTI"),
        ("DISCARD", "ERR DISCARD without MULTI"),
    ],
)
def test_commands_that_end_nothing_get_an_error(
    alice: InProcessClient, line: str, words: str
) -> None:
    assert alice.call(line) == Error(words)


def test_nested_and_late(alice: InProcessClient) -> None:
    alice.call("MULTI")
    assert alice.call("MULTI") == Error("ERR MULTI calls can not be nested")
    assert alice.call("WATCH k") == Error("ERR WATCH inside MULTI is not allowed")
    assert alice.call("EXEC") == []


def test_discard_forgets_requests_and_watches(alice: InProcessClient, bob: InProcessClient) -> None:
    for line in ("WATCH k", "MULTI", "SET k v"):
        alice.call(line)
    assert alice.call("DISCARD") == OK
    bob.call("SET k w")
    alice.call("MULTI")
    assert alice.call("EXEC") == []
    assert bob.call("GET k") == b"w"


CHANGES = [
    "SET k 1",
    "DEL k",
    "FLUSHALL",
    "FLUSHDB",
    "XADD s 9-9 a b",
    "TAPPEND s a b",
    "XDEL s 1-1",
    "XTRIM s MAXLEN 0",
    "DEL s",
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("by_herself", [True, False])
def test_a_changed_key_calls_it_off(
    alice: InProcessClient, bob: InProcessClient, change: str, by_herself: bool
) -> None:
    bob.call("SET k 1")
    bob.call("XADD s 1-1 a b")
    alice.call("WATCH k s")
    (alice if by_herself else bob).call(change)
    alice.call("MULTI")
    alice.call("SET done 1")
    assert alice.call("EXEC") is Null.ARRAY
    assert bob.call("EXISTS done") == 0
    alice.call("MULTI")
    alice.call("SET done 1")
    assert alice.call("EXEC") == [OK]


@pytest.mark.parametrize("change", ["SET other 1", "GET k", "XRANGE s - +", "XTRIM s MAXLEN 9"])
def test_changes_of_other_keys_do_not_abort_a_transaction(
    alice: InProcessClient, bob: InProcessClient, change: str
) -> None:
    bob.call("SET k 1")
    bob.call("XADD s 1-1 a b")
    alice.call("WATCH k s missing")
    bob.call(change)
    alice.call("MULTI")
    assert alice.call("EXEC") == []


def test_a_watched_key_belongs_to_its_database(
    alice: InProcessClient, bob: InProcessClient
) -> None:
    alice.call("WATCH k")
    bob.call("SELECT 1")
    bob.call("SET k 1")
    alice.call("SELECT 1")
    alice.call("MULTI")
    assert alice.call("EXEC") == []


def test_a_client_watches_a_limited_number_of_keys(
    alice: InProcessClient, bob: InProcessClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "WATCHES_MAX", 3)
    assert alice.call("WATCH a b") == OK
    assert alice.call("WATCH a b a c") == OK
    assert alice.call("WATCH d") == Error(transactions.TOO_MANY_WATCHES)
    assert len(alice.watches) == 3
    bob.call("SET c 1")
    alice.call("MULTI")
    assert alice.call("EXEC") is Null.ARRAY
    assert not alice.watches
    assert alice.call("WATCH d") == OK


def test_unwatch(alice: InProcessClient, bob: InProcessClient) -> None:
    alice.call("WATCH k")
    bob.call("SET k 1")
    alice.call("UNWATCH")
    alice.call("MULTI")
    assert alice.call("EXEC") == []


def test_a_client_that_leaves_ends_its_watches(
    in_process: InProcessServer, alice: InProcessClient
) -> None:
    alice.call("WATCH k s")
    in_process.executor.detach(alice)
    assert not in_process.keyspace.databases[0].watched


def test_reads_do_not_wait_within(alice: InProcessClient, bob: InProcessClient) -> None:
    for line in ("MULTI", "XREAD BLOCK 0 STREAMS s $", 'TREAD s "" 1 BLOCK 0'):
        alice.call(line)
    assert alice.call("EXEC") == [Null.ARRAY, Null.ARRAY]
    assert alice.call("PING") == Simple("PONG")


def test_waiting_readers_are_served_after_the_whole_transaction(
    in_process: InProcessServer, alice: InProcessClient
) -> None:
    reader = in_process.player()
    reader.send("XREAD BLOCK 0 STREAMS s $")
    for line in ("MULTI", "XADD s 1-1 a 1", "XADD s 2-1 b 2", "EXEC"):
        alice.call(line)
    assert reader.read() == [[b"s", [[b"1-1", [b"a", b"1"]], [b"2-1", [b"b", b"2"]]]]]


def test_a_stream_emptied_before_the_end_serves_no_reader(
    in_process: InProcessServer, alice: InProcessClient
) -> None:
    reader = in_process.player()
    reader.send("XREAD BLOCK 0 STREAMS s $")
    for line in ("MULTI", "XADD s 1-1 a 1", "DEL s", "EXEC"):
        alice.call(line)
    assert not reader.unread


def test_long_replies_are_whole_within(in_process: InProcessServer, alice: InProcessClient) -> None:
    for number in range(1, 3001):
        alice.call(f"XADD s {number}-0 field {'x' * 50}")
    alice.call("MULTI")
    alice.call("XRANGE s - +")
    alice.call("XLEN s")
    entries, length = alice.call("EXEC")
    assert (len(entries), length) == (3000, 3000)


def test_a_database_selected_inside_stays_selected_after_it(alice: InProcessClient) -> None:
    for line in ("MULTI", "SELECT 3", "SET k v", "EXEC"):
        alice.call(line)
    assert alice.call("GET k") == b"v"
    alice.call("SELECT 0")
    assert alice.call("GET k") is Null.BULK


@pytest.mark.parametrize("within", [True, False])
def test_exec_with_words_discards(alice: InProcessClient, within: bool) -> None:
    if within:
        alice.call("MULTI")
        alice.call("SET k v")
    assert alice.call("EXEC blah") == Error(
        "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command"
    )
    assert alice.call("EXISTS k") == 0

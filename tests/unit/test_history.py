"""The history checker finds each kind of fault, and none in a valid history."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.history import (
    BrokenHistory,
    EntryId,
    Found,
    FoundGroup,
    FoundStream,
    History,
    Operation,
    Words,
)
from tests.support.resp import Error, Null, Reply, Simple

OK = Simple("OK")
S = (0, b"s")


class Talk:
    """A history written down line by line."""

    def __init__(self) -> None:
        self.history = History(owned_renames=True)
        self.now_ms = 0

    def ask(self, line: str) -> Operation:
        return self.history.ask(0, line.encode().split(), self.now_ms)

    def exchange(self, line: str, reply: Reply) -> None:
        self.history.answer(self.ask(line), reply, self.now_ms)

    def appended(self, *numbers: int) -> None:
        for number in numbers:
            self.exchange(f"XADD s * n {number}", b"%d-0" % number)

    def given(self, *numbers: int, rest: str = "RETRY 1000 0") -> None:
        entries: list[Reply] = [[b"%d.0" % n, b"n", b"%d" % n] for n in numbers]
        self.exchange(f"TREAD s 0 10 GROUP g 0 {rest}", entries)


def stream(*numbers: int, offset: int = 0, pending: tuple[int, ...] = ()) -> Found:
    entries: list[tuple[EntryId, Words]] = [((n, 0), (b"n", b"%d" % n)) for n in numbers]
    return {S: FoundStream(entries, {b"g": FoundGroup((offset, 0), {(n, 0) for n in pending})})}


def acked_and_there(talk: Talk) -> Found:
    talk.appended(1, 2)
    return stream(1, 2)


def unanswered_append_there(talk: Talk) -> Found:
    talk.appended(1)
    talk.ask("XADD s * n 2")
    return stream(1, 2)


def unanswered_append_missing(talk: Talk) -> Found:
    talk.appended(1)
    talk.ask("XADD s * n 2")
    return stream(1)


def deleted_by_somebody(talk: Talk) -> Found:
    talk.appended(1, 2)
    talk.ask("XDEL s 1-0")
    return stream(2)


def trimmed_by_an_unanswered_append(talk: Talk) -> Found:
    talk.appended(1, 2)
    talk.ask("XADD s MAXLEN 2 * n 3")
    return stream(2, 3)


def numbered_and_sent_again(talk: Talk) -> Found:
    talk.exchange("TAPPENDONCE s PRODUCER p 7 n 1", b"1.0")
    talk.exchange("TAPPENDONCE s PRODUCER p 7 n 1", Null.BULK)
    talk.exchange("TAPPENDONCE s PRODUCER q 7 n 2", b"2.0")
    talk.exchange("TAPPENDONCE s ID 3.0 n 3", b"3.0")
    return stream(1, 2, 3)


def numbered_without_an_answer(talk: Talk) -> Found:
    talk.ask("TAPPENDONCE s PRODUCER p 7 n 1")
    talk.exchange("TAPPENDONCE s PRODUCER p 7 n 1", Null.BULK)
    return stream(1)


def numbers_of_a_key_made_anew(talk: Talk) -> Found:
    talk.exchange("TAPPENDONCE s PRODUCER p 7 n 1", b"1.0")
    talk.exchange("DEL s", 1)
    talk.exchange("TAPPENDONCE s PRODUCER p 7 n 2", b"2.0")
    return stream(2)


def deleted_before_it_was_trimmed(talk: Talk) -> Found:
    talk.appended(1, 2, 3)
    talk.exchange("XDEL s 2-0", 1)
    talk.exchange("XTRIM s MAXLEN 2", 0)
    return stream(1, 3)


def retried_in_time(talk: Talk) -> Found:
    talk.appended(1)
    talk.given(1)
    talk.now_ms += 1000
    talk.given(1)
    return stream(1, offset=1, pending=(1,))


def retried_for_one_who_died(talk: Talk) -> Found:
    talk.appended(1, 2)
    talk.ask("TREAD s 0 1 GROUP g 0 RETRY 1000 0")
    talk.given(2)
    talk.given(1)
    return stream(1, 2, offset=2, pending=(1, 2))


def acknowledged(talk: Talk) -> Found:
    talk.appended(1)
    talk.given(1)
    talk.exchange("TACK s g 1.0", 1)
    return stream(1, offset=1)


def key_made_anew(talk: Talk) -> Found:
    talk.appended(5)
    talk.exchange("DEL s", 1)
    talk.appended(1)
    return stream(1)


def appended_while_the_key_was_deleted(talk: Talk) -> Found:
    talk.ask("DEL s")
    talk.appended(1)
    return {}


def renamed(talk: Talk) -> Found:
    talk.exchange("XADD t * n 1", b"1-0")
    talk.exchange("RENAME t s", OK)
    return stream(1)


def renamed_without_an_answer(talk: Talk) -> Found:
    talk.exchange("XADD t * n 1", b"1-0")
    talk.ask("RENAME t s")
    return stream(1)


def read_of_new_and_own_entries_at_once(talk: Talk) -> Found:
    talk.appended(1, 2)
    own: Reply = [b"s", [[b"1-0", [b"n", b"1"]]]]
    talk.exchange("XREADGROUP GROUP g a COUNT 1 STREAMS s >", [own])
    talk.exchange("XREADGROUP GROUP g a STREAMS s s 0 >", [own, [b"s", [[b"2-0", [b"n", b"2"]]]]])
    return stream(1, 2, offset=2, pending=(1, 2))


def gone_by_its_time(talk: Talk) -> Found:
    talk.appended(1)
    talk.exchange("PEXPIRE s 10", 1)
    return {}


def overwritten_while_it_was_made(talk: Talk) -> Found:
    talk.ask("SET s 1")
    talk.appended(1)
    return {S: b"1"}


def group_destroyed_while_it_is_read(talk: Talk) -> Found:
    talk.appended(1)
    talk.ask("XGROUP DESTROY s g")
    talk.given(1)
    return {S: FoundStream([((1, 0), (b"n", b"1"))])}


def string_set_last(talk: Talk) -> Found:
    talk.exchange("SET s 1", OK)
    talk.exchange("SET s 2", OK)
    return {S: b"2"}


def string_set_without_an_answer(talk: Talk) -> Found:
    talk.exchange("SET s 1", OK)
    talk.ask("SET s 2")
    return {S: b"2"}


def refused(talk: Talk) -> Found:
    talk.appended(1)
    talk.exchange("XADD s * n 2", Error("MISCONF"))
    return stream(1)


@pytest.mark.parametrize(
    "play",
    [acked_and_there, unanswered_append_there, unanswered_append_missing, deleted_by_somebody,
     trimmed_by_an_unanswered_append, deleted_before_it_was_trimmed, retried_in_time,
     retried_for_one_who_died, acknowledged, key_made_anew, appended_while_the_key_was_deleted,
     gone_by_its_time, numbered_and_sent_again, numbered_without_an_answer,
     numbers_of_a_key_made_anew,
     read_of_new_and_own_entries_at_once,
     overwritten_while_it_was_made, group_destroyed_while_it_is_read, renamed,
     renamed_without_an_answer, string_set_last, string_set_without_an_answer, refused],
)  # fmt: skip
def test_possible_histories_are_accepted(play: Callable[[Talk], Found]) -> None:
    talk = Talk()
    talk.history.check(play(talk))


def lost_append(talk: Talk) -> Found:
    talk.appended(1, 2)
    return stream(2)


def other_fields(talk: Talk) -> Found:
    talk.appended(1)
    return {S: FoundStream([((1, 0), (b"n", b"2"))])}


def nobody_asked(talk: Talk) -> Found:
    talk.appended(1)
    return stream(1, 2)


def there_twice(talk: Talk) -> Found:
    talk.appended(1)
    return {S: FoundStream([((1, 0), (b"n", b"1")), ((2, 0), (b"n", b"1"))])}


def refused_and_there(talk: Talk) -> Found:
    talk.appended(1)
    talk.exchange("XADD s * n 2", Error("MISCONF"))
    return stream(1, 2)


def number_appended_twice(talk: Talk) -> Found:
    talk.exchange("TAPPENDONCE s PRODUCER p 7 n 1", b"1.0")
    talk.exchange("TAPPENDONCE s PRODUCER p 7 n 2", b"2.0")
    return stream(1, 2)


def lower_number_appended(talk: Talk) -> Found:
    talk.exchange("TAPPENDONCE s PRODUCER p 7 n 1", b"1.0")
    talk.exchange("TAPPENDONCE s PRODUCER p 6 n 2", b"2.0")
    return stream(1, 2)


def repeat_that_is_there_twice(talk: Talk) -> Found:
    talk.exchange("TAPPENDONCE s PRODUCER p 7 n 1", b"1.0")
    talk.exchange("TAPPENDONCE s PRODUCER p 7 n 1", Null.BULK)
    return {S: FoundStream([((1, 0), (b"n", b"1")), ((2, 0), (b"n", b"1"))])}


def unanswered_repeat_that_is_there_twice(talk: Talk) -> Found:
    talk.ask("TAPPENDONCE s PRODUCER p 7 n 1")
    talk.exchange("TAPPENDONCE s PRODUCER p 7 n 1", b"2.0")
    return {S: FoundStream([((1, 0), (b"n", b"1")), ((2, 0), (b"n", b"1"))])}


def numbered_append_lost(talk: Talk) -> Found:
    talk.exchange("TAPPENDONCE s PRODUCER p 7 n 1", b"1.0")
    return {}


def ids_fall(talk: Talk) -> Found:
    talk.appended(2, 1)
    return stream(1, 2)


def deleted_comes_back(talk: Talk) -> Found:
    talk.appended(1, 2)
    talk.exchange("XDEL s 1-0", 1)
    return stream(1, 2)


def trimmed_comes_back(talk: Talk) -> Found:
    talk.appended(1, 2, 3)
    talk.exchange("XTRIM s MAXLEN 2", 1)
    return stream(1, 2, 3)


def trimmed_too_much(talk: Talk) -> Found:
    talk.appended(1, 2, 3)
    talk.exchange("XTRIM s MAXLEN 2", 1)
    return stream(3)


def evicted_by_id_comes_back(talk: Talk) -> Found:
    talk.appended(1, 2, 3)
    talk.exchange("XTRIM s MINID 3-0", 2)
    return stream(2, 3)


def acknowledged_and_pending(talk: Talk) -> Found:
    talk.appended(1)
    talk.given(1)
    talk.exchange("TACK s g 1.0", 1)
    return stream(1, offset=1, pending=(1,))


def acknowledged_and_given_again(talk: Talk) -> Found:
    talk.appended(1)
    talk.given(1)
    talk.exchange("TACK s g 1.0", 1)
    talk.now_ms += 5000
    talk.given(1)
    return stream(1, offset=1, pending=(1,))


def given_and_not_pending(talk: Talk) -> Found:
    talk.appended(1)
    talk.given(1)
    return stream(1, offset=1)


def position_goes_back(talk: Talk) -> Found:
    talk.appended(1, 2)
    talk.given(1, 2)
    return stream(1, 2, offset=1, pending=(1, 2))


def group_lost(talk: Talk) -> Found:
    talk.appended(1)
    talk.given(1)
    return {S: FoundStream([((1, 0), (b"n", b"1"))])}


def given_to_two(talk: Talk) -> Found:
    talk.appended(1)
    entry: Reply = [[b"s", [[b"1-0", [b"n", b"1"]]]]]
    talk.exchange("XREADGROUP GROUP g a STREAMS s >", entry)
    talk.exchange("XREADGROUP GROUP g b STREAMS s >", entry)
    return stream(1, offset=1, pending=(1,))


def retried_too_early(talk: Talk) -> Found:
    talk.appended(1)
    talk.given(1)
    talk.now_ms += 999
    talk.given(1)
    return stream(1, offset=1, pending=(1,))


def given_out_of_order(talk: Talk) -> Found:
    talk.appended(1, 2)
    talk.given(2)
    talk.given(1)
    return stream(1, 2, offset=2, pending=(1, 2))


def acknowledged_is_claimed(talk: Talk) -> Found:
    talk.appended(1)
    talk.given(1)
    talk.exchange("XACK s g 1-0", 1)
    talk.exchange("XCLAIM s g b 0 1-0", [[b"1-0", [b"n", b"1"]]])
    return stream(1, offset=1, pending=(1,))


def string_falls_back(talk: Talk) -> Found:
    talk.exchange("SET s 1", OK)
    talk.exchange("SET s 2", OK)
    return {S: b"1"}


def renamed_and_lost(talk: Talk) -> Found:
    talk.exchange("XADD t * n 1", b"1-0")
    talk.exchange("RENAME t s", OK)
    return {}


@pytest.mark.parametrize(
    "play",
    [lost_append, other_fields, nobody_asked, there_twice, refused_and_there, ids_fall,
     number_appended_twice, lower_number_appended, repeat_that_is_there_twice,
     unanswered_repeat_that_is_there_twice, numbered_append_lost,
     deleted_comes_back, trimmed_comes_back, trimmed_too_much, evicted_by_id_comes_back,
     acknowledged_and_pending, acknowledged_and_given_again, given_and_not_pending,
     position_goes_back, group_lost, given_to_two, retried_too_early, given_out_of_order,
     acknowledged_is_claimed, string_falls_back, renamed_and_lost],
)  # fmt: skip
def test_a_broken_promise_is_found(play: Callable[[Talk], Found]) -> None:
    talk = Talk()
    with pytest.raises(BrokenHistory):
        talk.history.check(play(talk))

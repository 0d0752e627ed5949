"""Every command of millstream: its words, and how its reply is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

from millstream.client.core import argument_checks
from millstream.client.core.decoding import (
    read_blocks,
    read_id_or_none,
    read_info,
    read_map,
    read_map_or_none,
    read_policy,
    read_redriven,
    read_row,
    read_scheduled,
    read_writers,
    record_reader,
)
from millstream.client.core.position import milliseconds
from millstream.client.core.steps import Command, Word
from millstream.client.core.words import (
    Condition,
    Fields,
    IdWord,
    Key,
    Order,
    field_words,
    id_word,
    text,
    wait_words,
    where_words,
)
from millstream.client.ids import ID, read_id
from millstream.client.records import Record
from millstream.client.rows import Redriven, Scheduled, Seek, WriterPosition

A = TypeVar("A")


def same(reply: A) -> A:
    return reply


def command(*words: Word, read: Any = None, wait_s: float = 0.0) -> Command[Any]:
    return Command(tuple(words), read or same, wait_s)


def packed(name: str, key: Key, request: bytes) -> Command[Any]:
    """A command whose words were written as RESP before."""
    return Command((name, key), same, packed=request)


# ---------------------------------------------------------------- appending


def tappend(key: Key, fields: Fields) -> Command[ID]:
    return command("TAPPEND", key, *field_words(fields), read=read_id)


def tappev(
    key: Key, fields: Fields | None, count: int | None, time: int | None
) -> Command[ID | int]:
    if (count is None) == (time is None):
        raise ValueError("tappev needs either a count or a time")
    limit: list[Word] = ["COUNT", count] if count is not None else ["TIME", time or 0]
    added = field_words(fields) if fields else []
    return command("TAPPEV", key, *limit, *added, read=read_id if added else same)


def tappendonce(
    key: Key, fields: Fields, id: IdWord | None, producer: Key | None, seq: int | None
) -> Command[ID | None]:
    if (id is None) == (producer is None) or (producer is None) != (seq is None):
        raise ValueError("tappendonce needs either an id, or a producer and a seq")
    by: list[Word] = (
        ["ID", id_word(id)] if id is not None else ["PRODUCER", producer or b"", seq or 0]
    )
    return command("TAPPENDONCE", key, *by, *field_words(fields), read=read_id_or_none)


def tappendmany(
    streams: Mapping[Any, Sequence[tuple[IdWord, Fields]]], producer: Key | None
) -> Command[int]:
    by: list[Word] = ["ID"] if producer is None else ["PRODUCER", producer]
    words: list[Word] = []
    for _, entries in argument_checks.items(streams):
        words.append(len(entries))
        for number, fields in entries:
            added = field_words(fields)
            words += [id_word(number), len(added) // 2, *added]
    return command("TAPPENDMANY", len(streams), *streams, *by, *words)


def append_once(key: Key, producer: str, number: Word, words: Sequence[Word]) -> Command[ID]:
    """XADD with IDMP: sent again, it gives the ID of the entry that it appended before."""
    return command("XADD", key, "IDMP", producer, number, "*", *words, read=read_id)


# ---------------------------------------------------------------- reading


class GroupWords(NamedTuple):
    """The group of a TREAD, if it reads for one, and the times of its entries."""

    group: Key | None
    ttl_ms: int = 0
    retry_ms: int | None = None
    expire_ms: int = 0

    def words(self) -> list[Word]:
        words: list[Word] = []
        if self.group is not None:
            words += ["GROUP", self.group, self.ttl_ms]
        if self.retry_ms is not None:
            words += ["RETRY", self.retry_ms, self.expire_ms]
        return words


def tread(
    key: Key,
    last_id: IdWord,
    count: int,
    block: int | None,
    group: GroupWords,
    withinfo: bool = False,
    where: Sequence[Condition] = (),
) -> Command[Any]:
    wait, wait_s = wait_words(block)
    words: list[Word] = [key, id_word(last_id), count, *wait, *group.words()]
    if withinfo:
        words += ["WITHINFO"]
    words += where_words(where)
    read = record_reader(key)

    def with_info(reply: list[Any]) -> tuple[tuple[ID | None, ID | None], list[Any]]:
        first, last = reply[0]
        return (read_id_or_none(first), read_id_or_none(last)), read(reply[1:])

    return command(
        "TREAD",
        *words,
        read=with_info if withinfo else read,
        wait_s=wait_s,
    )


def trange(
    key: Key, start: IdWord, end: IdWord, count: int | None, where: Sequence[Condition] = ()
) -> Command[list[Record[Any]]]:
    limit: list[Word] = [] if count is None else ["COUNT", count]
    limit += where_words(where)
    return command("TRANGE", key, id_word(start), id_word(end), *limit, read=record_reader(key))


def tblocks(
    key: Key, start: IdWord, end: IdWord, count: int | None, size_bytes: int | None
) -> Command[dict[str, Any] | None]:
    words: list[Word] = [] if count is None else ["COUNT", count]
    if size_bytes is not None:
        words += ["BYTES", size_bytes]
    return command("TBLOCKS", key, id_word(start), id_word(end), *words, read=read_blocks)


def tack(key: Key, group: Key, ids: Iterable[IdWord]) -> Command[int]:
    return command("TACK", key, group, *map(id_word, ids))


def tgroup(
    key: Key,
    group: Key,
    start: IdWord | None,
    rules: Mapping[str, Word | None],
    backoff: Sequence[int] | None = None,
    order: Order | None = None,
    where: Sequence[Condition] | None = None,
) -> Command[bool]:
    """`rules` are the option words of the command that have one value; None for those that stay."""
    words: list[Word] = [] if start is None else ["START", id_word(start)]
    for name, value in rules.items():
        if value is not None:
            words += [name, value]
    if backoff is not None:
        words += ["BACKOFF", len(argument_checks.listed("backoff", backoff)), *backoff]
    if order is not None:
        is_word = isinstance(order, str)
        words += ["ORDER", *([order] if is_word else argument_checks.listed("order", order))]
    if where is not None:
        words += where_words(where) or ["WHERE", 0]
    return command("TGROUP", key, group, *words, read=lambda reply: text(reply) == "OK")


class NackWords(NamedTuple):
    """The way entries are given back: SILENT, FAIL or FATAL, the delay in milliseconds, the reason
    for a dead letter."""

    mode: str = "FAIL"
    delay_ms: int | None = None
    reason: Key | None = None

    @classmethod
    def of(cls, silent: bool, fatal: bool, delay: int | None, reason: Key | None) -> NackWords:
        if silent and fatal:
            raise ValueError("an entry is given back either silent or fatal, not both")
        return cls("SILENT" if silent else "FATAL" if fatal else "FAIL", delay, reason)

    def words(self) -> list[Word]:
        words: list[Word] = [self.mode]
        if self.delay_ms is not None:
            words += ["DELAY", self.delay_ms]
        if self.reason is not None:
            words += ["REASON", self.reason]
        return words


def tnack(
    key: Key, group: Key, consumer: Key, ids: Sequence[IdWord], how: NackWords
) -> Command[list[int]]:
    if not ids:
        raise ValueError("tnack needs an ID; tnack_all gives back all entries of a consumer")
    which = ["IDS", len(ids), *map(id_word, ids)]
    return command("TNACK", key, group, consumer, *how.words(), *which)


def tnack_all(key: Key, group: Key, consumer: Key, how: NackWords) -> Command[int]:
    return command("TNACK", key, group, consumer, *how.words(), "ALL")


def textend(
    key: Key, group: Key, consumer: Key, ms: int, ids: Sequence[IdWord]
) -> Command[list[int]]:
    if not ids:
        raise ValueError("textend needs an ID")
    which = ["IDS", len(ids), *map(id_word, ids)]
    return command("TEXTEND", key, group, consumer, ms, *which)


def tredrive(
    dead: Key,
    key: Key,
    group: Key,
    count: int,
    after: IdWord | None,
    name: Key | None,
    append: bool,
) -> Command[Redriven]:
    words: list[Word] = [] if after is None else ["AFTER", id_word(after)]
    if name is not None:
        words += ["FROM", name]
    if append:
        words.append("APPEND")
    return command("TREDRIVE", dead, key, group, count, *words, read=read_redriven)


def schedule(key: Key, fields: Fields, at: Any, after: float | None, name: Key) -> Command[ID]:
    if (at is None) == (after is None):
        raise ValueError("schedule needs either a time (at) or seconds from now (after)")
    if after is None:
        when: list[Word] = ["AT", milliseconds(at)]
    else:
        when = ["IN", math.ceil(argument_checks.duration_s("after", after) * 1000)]
    argument_checks.key("name", name)
    return command("TSCHEDULE", key, *when, name, *field_words(fields), read=read_id)


def scheduled(
    key: Key, start: IdWord, end: IdWord, count: int | None
) -> Command[list[Scheduled[Any]]]:
    most: list[Word] = [] if count is None else ["COUNT", count]
    return command("TSCHEDULED", key, id_word(start), id_word(end), *most, read=read_scheduled)


def cancel(key: Key, tickets: Sequence[IdWord], names: Sequence[Key]) -> Command[int]:
    if bool(tickets) == bool(names):
        raise ValueError("cancel needs either tickets or names")
    which: list[Word] = ["NAME", *names] if names else list(map(id_word, tickets))
    return command("TCANCEL", key, *which)


def set_group_place(key: Key, group: Key, start: str) -> Command[Any]:
    """XGROUP SETID: the group continues after this ID."""
    return command("XGROUP", "SETID", key, group, start.replace(".", "-"))


def tseek(key: Key, after: IdWord, n: int) -> Command[Seek]:
    return command(
        "TSEEK",
        key,
        id_word(after),
        n,
        read=lambda reply: Seek(reply[0], read_id_or_none(reply[1])),
    )


def tpeek(
    key: Key, token: IdWord, count: int, block: int | None
) -> Command[tuple[Any, list[Record[Any] | None]]]:
    wait, wait_s = wait_words(block)
    read = record_reader(key)
    return command(
        "TPEEK",
        key,
        id_word(token),
        count,
        *wait,
        read=lambda reply: (reply[0], read(reply[1])),
        wait_s=wait_s,
    )


def tmread(
    streams: Iterable[tuple[Key, IdWord]],
    count: int,
    block: int | None,
    clock: bool,
    read: Any = None,
    where: Sequence[Condition] = (),
) -> Command[Any]:
    """`read` replaces the reader of the rows."""
    wait, wait_s = wait_words(block)
    promise = ["CLOCK"] if clock else []
    pairs = list(streams)
    if not pairs:
        raise ValueError("tmread needs at least one stream")
    keys, places = zip(*pairs, strict=True)
    return command(
        "TMREAD",
        count,
        *wait,
        *promise,
        *where_words(where),
        "STREAMS",
        *keys,
        *map(id_word, places),
        read=read or (lambda rows: [read_row(row) for row in rows]),
        wait_s=wait_s,
    )


# ---------------------------------------------------------------- reservations


def treserve(key: Key, writer: Key, count: int | None, lease: int | None) -> Command[ID | list[ID]]:
    words: list[Word] = [] if count is None else ["COUNT", count]
    if lease is not None:
        words += ["LEASE", lease]

    def read(reply: Any) -> ID | list[ID]:
        return [read_id(word) for word in reply] if isinstance(reply, list) else read_id(reply)

    return command("TRESERVE", key, writer, *words, read=read)


def tcomplete(key: Key, writer: Key, id: IdWord, fields: Fields) -> Command[ID]:
    return command(
        "TCOMPLETE",
        key,
        writer,
        id_word(id),
        *field_words(fields),
        read=read_id,
    )


def tabort(key: Key, writer: Key, ids: Sequence[IdWord], keep: Sequence[IdWord]) -> Command[int]:
    if ids and keep:
        raise ValueError("tabort takes IDs to give up or IDs to keep, not both")
    except_ = ["EXCEPT"] if keep else []
    return command("TABORT", key, writer, *except_, *map(id_word, ids or keep))


def trenew(key: Key, writer: Key, ms: int, ids: Iterable[IdWord]) -> Command[int]:
    return command("TRENEW", key, writer, ms, *map(id_word, ids))


def tposition(
    key: Key, writer: Key | None, wait: IdWord | None, ms: int | None
) -> Command[ID | None]:
    words: list[Word] = [] if writer is None else ["WRITER", writer]
    wait_s = 0.0
    if wait is not None:
        argument_checks.block_ms(ms or 0)
        words += ["WAIT", id_word(wait), ms or 0]
        wait_s = ms / 1000 if ms else math.inf
    elif ms is not None:
        raise ValueError("tposition needs an ID to wait for if it has ms")
    return command("TPOSITION", key, *words, read=read_id_or_none, wait_s=wait_s)


def tpositions(key: Key) -> Command[list[WriterPosition[Any]]]:
    return command("TPOSITION", key, "WRITERS", read=read_writers)


# ---------------------------------------------------------------- streams as a whole


def tseal(key: Key, children: Sequence[Key], elsewhere: bool) -> Command[ID]:
    words: list[Word] = ["ELSEWHERE"] if elsewhere else []
    if children:
        words += ["CHILDREN", *children]
    return command("TSEAL", key, *words, read=read_id)


def tcreate(key: Key, floor: IdWord | None, parents: Sequence[Key]) -> Command[bool]:
    words: list[Word] = [] if floor is None else ["FLOOR", id_word(floor)]
    if argument_checks.listed("parents", parents):
        words += ["PARENTS", *parents]
    return command("TCREATE", key, *words, read=lambda reply: text(reply) == "OK")


def create_if_missing(key: Key) -> Command[bool | None]:
    """TCREATE; a stream that was created in the meantime is as good."""
    made: Command[Any] = tcreate(key, None, ())
    return replace(made, accepts="BUSYKEY")


def tinfo(key: Key, group: Key | None = None) -> Command[dict[str, Any] | None]:
    if group is None:
        return command("TINFO", key, read=read_info)
    return command("TINFO", key, "GROUP", group, read=read_map_or_none)


def tinfo_producer(key: Key, producer: Key) -> Command[int | None]:
    """The greatest number that a producer has sent; None if the stream does not know it."""
    return command(
        "TINFO",
        key,
        "PRODUCER",
        producer,
        read=lambda reply: None if reply is None else int(reply),
    )


class PolicyChanges(TypedDict, total=False):
    """The options of TPOLICY; those that are missing or None stay as they are."""

    maxlen: int | None
    maxage: int | None
    maxbytes: int | None
    exact: bool | None
    evict: Literal["ANY", "ACKED", "DONE"] | None
    hardlen: int | None
    hardage: int | None
    hardbytes: int | None


def tpolicy(key: Key, changes: PolicyChanges) -> Command[dict[str, Any] | bool | None]:
    words: list[Word] = []
    for name, value in changes.items():
        if name not in PolicyChanges.__annotations__:
            raise TypeError(f"tpolicy() got an unexpected keyword argument {name!r}")
        if value is None:
            continue
        if name == "exact":
            words.append("EXACT" if value else "APPROX")
        else:
            words += [name.upper(), str(value)]
    read = (lambda reply: text(reply) == "OK") if words else read_policy
    return command("TPOLICY", key, *words, read=read)


def idmp_duration(key: Key) -> Command[int | None]:
    """For how many seconds a stream recognizes a repeated append; None if it does not exist."""
    made = command("XINFO", "STREAM", key, read=lambda reply: read_map(reply)["idmp-duration"])
    return replace(made, accepts=NO_KEY)


NO_KEY = "no such key"
"""redis-py leaves out the code ERR of an error."""


def length_limit() -> Command[dict[str, Any]]:
    """The greatest length of a word, for `check_length`."""
    return command("CONFIG", "GET", "proto-max-bulk-len", read=read_map)


class GroupState(NamedTuple):
    """A group in XINFO GROUPS: entries that it has not delivered yet, None if the
    number is not known, entries that are delivered and not acknowledged, and the last entry that
    it has delivered."""

    lag: int | None
    pending: int
    last_delivered: ID


def group_state(key: Key, group: Key) -> Command[GroupState | None]:
    wanted = text(group)

    def read(reply: list[Any]) -> GroupState | None:
        for row in map(read_map, reply):
            if text(row["name"]) == wanted:
                last = read_id(row["last-delivered-id"])
                return GroupState(row["lag"], row["pending"], last)
        return None

    return replace(command("XINFO", "GROUPS", key, read=read), accepts=NO_KEY)

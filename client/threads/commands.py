# Generated from client/aio/commands.py by scripts/client_for_threads.py: change it there.
"""The commands of millstream as methods of a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, Unpack, overload

from millstream.client.core import requests
from millstream.client.core.argument_checks import items
from millstream.client.core.steps import Command, R
from millstream.client.core.words import Condition, Fields, IdWord, Key, Order
from millstream.client.ids import ID
from millstream.client.records import Record, T
from millstream.client.rows import Row, Seek, WriterPosition


class StreamCommands(Generic[T]):
    """One method for each command.

    A method has the command's name in lower case, and its arguments in the command's order. Options
    are keywords; EXCEPT is `except_`, because of Python's word. Units are those of the command:
    milliseconds. Where a reply has an ID, the method returns an ID. Fields are a mapping, or pairs
    where a field is repeated. Every method raises redis-py's errors, or those of
    `millstream.client.errors`.
    """

    def _ask(self, command: Command[R]) -> R:
        raise NotImplementedError

    # ------------------------------------------------------------ appending

    def tappend(self, key: Key, fields: Fields) -> ID:
        """Append an entry; returns its ID.

        >>> tea = ms.tappend("orders", {"item": "tea"})
        >>> tea < ms.tappend("orders", [("tag", 1), ("tag", 2)])
        True
        """
        return self._ask(requests.tappend(key, fields))

    @overload
    def tappev(
        self, key: Key, fields: None = None, *, count: int | None = None, time: int | None = None
    ) -> int: ...
    @overload
    def tappev(
        self, key: Key, fields: Fields, *, count: int | None = None, time: int | None = None
    ) -> ID: ...
    def tappev(
        self,
        key: Key,
        fields: Fields | None = None,
        *,
        count: int | None = None,
        time: int | None = None,
    ) -> ID | int:
        """Append an entry and evict all but the newest `count`, or those older than `time` ms.

        Returns the ID. Without fields nothing is appended, and the number of evicted entries is
        returned.

        >>> ids = [ms.tappend("gauge", {"level": level}) for level in (7, 8, 9)]
        >>> ms.tappev("gauge", count=1)
        2
        """
        return self._ask(requests.tappev(key, fields, count, time))

    def tappendonce(
        self,
        key: Key,
        fields: Fields,
        *,
        id: IdWord | None = None,
        producer: Key | None = None,
        seq: int | None = None,
    ) -> ID | None:
        """Append an entry unless it was appended before: then None.

        Either `id` is the ID of the entry, or `producer` and `seq` identify it.

        >>> ms.tappendonce("alerts", {"text": "hot"}, producer="job", seq=1) is None
        False
        >>> ms.tappendonce("alerts", {"text": "hot"}, producer="job", seq=1) is None
        True
        """
        return self._ask(requests.tappendonce(key, fields, id, producer, seq))

    def tappendmany(
        self,
        streams: Mapping[Any, Sequence[tuple[IdWord, Fields]]],
        *,
        producer: Key | None = None,
    ) -> int:
        """Append entries to one or more streams, except those appended before; returns their
        number.

        `streams` has the entries of each key: pairs of a seq and fields, if there is a `producer`,
        and else pairs of an ID and fields.

        >>> entries = [(1, {"text": "hot"}), (2, {"text": "cold"})]
        >>> ms.tappendmany({"alarms": entries}, producer="job")
        2
        >>> ms.tappendmany({"alarms": entries}, producer="job")
        0
        """
        return self._ask(requests.tappendmany(streams, producer))

    # ------------------------------------------------------------ reading

    @overload
    def tread(
        self, key: Key, last_id: IdWord, count: int, *, block: int | None = None,
        group: Key | None = None, ttl: int = 0, retry: int | None = None, expire: int = 0,
        withinfo: Literal[False] = False, where: Sequence[Condition] = (),
    ) -> list[Record[T] | None]: ...  # fmt: skip
    @overload
    def tread(
        self, key: Key, last_id: IdWord, count: int, *, block: int | None = None,
        group: Key | None = None, ttl: int = 0, retry: int | None = None, expire: int = 0,
        withinfo: Literal[True], where: Sequence[Condition] = (),
    ) -> tuple[tuple[ID | None, ID | None], list[Record[T] | None]]: ...  # fmt: skip
    def tread(
        self, key: Key, last_id: IdWord, count: int, *, block: int | None = None,
        group: Key | None = None, ttl: int = 0, retry: int | None = None, expire: int = 0,
        withinfo: bool = False, where: Sequence[Condition] = (),
    ) -> Any:  # fmt: skip
        """Read up to `count` entries after an ID, or the next ones of a group.

        None in the list stands for entries that were evicted before they were read. If `block` ms
        are over, the list is empty. With `withinfo`, the first and the last ID of the stream come
        before the list. `where` as in trange; a group has its own filter.

        >>> _ = ms.tappend("sensors", {"temperature": "35.6"})
        >>> [record["temperature"] for record in ms.tread("sensors", 0, 10)]
        ['35.6']
        """
        words = requests.GroupWords(group, ttl, retry, expire)
        return self._ask(requests.tread(key, last_id, count, block, words, withinfo, where))

    def trange(
        self,
        key: Key,
        start: IdWord = "-",
        end: IdWord = "+",
        *,
        count: int | None = None,
        where: Sequence[Condition] = (),
    ) -> list[Record[T]]:
        """The entries from one ID to another, both included: those that meet all conditions in
        `where`, of which `count` counts the matches.

        A condition is (field, "EQ", value), (field, "PREFIX", text), (field, "IN", values) or
        (field, "BETWEEN", min, max).

        >>> new = ms.tappend("steps", {"n": 1})
        >>> [record.id == new for record in ms.trange("steps", new)]
        [True]
        >>> ms.trange("steps", new, where=[("n", "BETWEEN", 2, 9)])
        []
        """
        return self._ask(requests.trange(key, start, end, count, where))

    def tblocks(
        self,
        key: Key,
        start: IdWord = "-",
        end: IdWord = "+",
        *,
        count: int | None = None,
        bytes: int | None = None,
    ) -> dict[str, Any] | None:
        """A page of the blocks that hold the entries from one ID to another, by the names of the
        reply; None if there is no such key. The blocks are bytes.

        >>> _ = ms.tappend("mass", {"n": 1})
        >>> page = ms.tblocks("mass", count=1)
        >>> page["length"], len(page["blocks"]), page["next-id"]
        (1, 1, None)
        """
        return self._ask(requests.tblocks(key, start, end, count, bytes))

    def tack(self, key: Key, group: Key, *ids: IdWord) -> int:
        """Acknowledge entries of a group; returns how many of them were pending.

        >>> _ = ms.tappend("jobs", {"n": 1})
        >>> [job] = ms.tread("jobs", 0, 1, group="crew", retry=60_000)
        >>> ms.tack("jobs", "crew", job.id)
        1
        """
        return self._ask(requests.tack(key, group, ids))

    def tgroup(
        self, key: Key, group: Key, *, start: IdWord | None = None, ttl: int | None = None,
        timeout: int | None = None, backoff: Sequence[int] | None = None, run: int | None = None,
        maxdeliver: int | None = None, deadletter: Key | None = None,
        maxinflight: int | None = None, consumerttl: int | None = None, pause: int | None = None,
        order: Order | None = None, where: Sequence[Condition] | None = None,
    ) -> bool:  # fmt: skip
        """Set the rules of a group, in milliseconds; those that are not given stay.

        With `start`, a missing group or stream is created. `order` is "ALL", ("FIELD", name) or
        "NONE", `where` has conditions as in `trange`. An empty `where` or `deadletter` is none.

        >>> ms.tgroup("mail", "senders", start=0, timeout=30_000, order=("FIELD", "to"))
        True
        """
        rules: dict[str, Any] = {"TTL": ttl, "TIMEOUT": timeout, "MAXDELIVER": maxdeliver}
        rules |= {"DEADLETTER": deadletter, "MAXINFLIGHT": maxinflight}
        rules |= {"CONSUMERTTL": consumerttl, "PAUSE": pause, "RUN": run}
        return self._ask(requests.tgroup(key, group, start, rules, backoff, order, where))

    def tnack(
        self, key: Key, group: Key, consumer: Key, *ids: IdWord, silent: bool = False,
        fatal: bool = False, delay: int | None = None, reason: Key | None = None,
    ) -> list[int]:  # fmt: skip
        """Give entries of a managed group back, for all its readers, at once or after `delay` ms.

        Returns 1 for each entry that was given back, 2 if it went to the dead letter stream, 3 if
        it waits for one, -1 if this consumer does not hold it. With `silent`, the delivery does not
        count; with `fatal`, the entry is not delivered again. A dead letter has the `reason`. An
        empty consumer stands for reads by `tread`.

        >>> _ = ms.tgroup("post", "senders", start=0, timeout=30_000)
        >>> _ = ms.tappend("post", {"to": "ann"})
        >>> [letter] = ms.tread("post", 0, 1, group="senders")
        >>> ms.tnack("post", "senders", "", letter.id, delay=60_000)
        [1]
        """
        how = requests.NackWords.of(silent, fatal, delay, reason)
        return self._ask(requests.tnack(key, group, consumer, ids, how))

    def tnack_all(
        self, key: Key, group: Key, consumer: Key, *, silent: bool = False,
        fatal: bool = False, delay: int | None = None, reason: Key | None = None,
    ) -> int:  # fmt: skip
        """Give everything back that a consumer holds, as `tnack` does; returns the number of
        entries.

        >>> _ = ms.tgroup("bills", "senders", start=0, timeout=30_000)
        >>> ms.tnack_all("bills", "senders", "worker-1", silent=True)
        0
        """
        how = requests.NackWords.of(silent, fatal, delay, reason)
        return self._ask(requests.tnack_all(key, group, consumer, how))

    def textend(self, key: Key, group: Key, consumer: Key, ms: int, *ids: IdWord) -> list[int]:
        """Keep entries of a managed group for `ms` more; 1 for each, -1 if it is not held.

        >>> _ = ms.tgroup("films", "encoders", start=0, timeout=30_000)
        >>> film = ms.tappend("films", {"n": 1})
        >>> _ = ms.tread("films", 0, 1, group="encoders")
        >>> ms.textend("films", "encoders", "", 600_000, film)
        [1]
        """
        return self._ask(requests.textend(key, group, consumer, ms, ids))

    def tseek(self, key: Key, after: IdWord, n: int) -> Seek:
        """Find the n-th entry after an ID: how many there are, up to n, and the last one's ID.

        >>> ids = [ms.tappend("pages", {"n": n}) for n in range(3)]
        >>> ms.tseek("pages", 0, 2) == (2, ids[1])
        True
        """
        return self._ask(requests.tseek(key, after, n))

    def tpeek(
        self, key: Key, token: IdWord, count: int, *, block: int | None = None
    ) -> tuple[T, list[Record[T] | None]]:
        """Read entries as soon as their own writers have settled everything before them.

        Returns the token for the next call, and the entries.

        >>> _ = ms.tappend("bills", {"total": 12})
        >>> token, records = ms.tpeek("bills", 0, 10)
        >>> [record["total"] for record in records]
        ['12']
        """
        return self._ask(requests.tpeek(key, token, count, block))

    def tmread(
        self,
        count: int,
        streams: Mapping[Any, IdWord],
        *,
        block: int | None = None,
        clock: bool = False,
        where: Sequence[Condition] = (),
    ) -> list[Row[T]]:
        """Read entries after an ID from each stream, and how far each stream is settled. `where` as
        in trange; `next` moves over what does not match.

        >>> new = ms.tappend("rows", {"n": 1})
        >>> [row] = ms.tmread(10, {"rows": 0})
        >>> row.next == new, row.ended, [dict(record) for record in row.entries]
        (True, False, [{'n': '1'}])
        """
        return self._ask(requests.tmread(items(streams), count, block, clock, None, where))

    # ------------------------------------------------------------ reservations

    @overload
    def treserve(self, key: Key, writer: Key, *, lease: int | None = None) -> ID: ...
    @overload
    def treserve(
        self, key: Key, writer: Key, count: None = None, lease: int | None = None
    ) -> ID: ...
    @overload
    def treserve(self, key: Key, writer: Key, count: int, lease: int | None = None) -> list[ID]: ...
    def treserve(
        self, key: Key, writer: Key, count: int | None = None, lease: int | None = None
    ) -> ID | list[ID]:
        """Reserve an ID for a writer, or `count` consecutive ones, for `lease` ms.

        >>> first, second = ms.treserve("bookings", "api-1", 2)
        >>> second == (first.ms, first.seq + 1)
        True
        """
        return self._ask(requests.treserve(key, writer, count, lease))

    def tcomplete(self, key: Key, writer: Key, id: IdWord, fields: Fields) -> ID:
        """Complete a reservation; returns the position of the stream afterwards.

        >>> fact = ms.treserve("parcels", "api-1")
        >>> ms.tcomplete("parcels", "api-1", fact, {"item": "tea"}) == fact
        True
        """
        return self._ask(requests.tcomplete(key, writer, id, fields))

    def tabort(self, key: Key, writer: Key, *ids: IdWord, except_: Sequence[IdWord] = ()) -> int:
        """Give up reservations of a writer; returns their number.

        Without IDs all of the writer's are given up, or with `except_` all but those.

        >>> _ = ms.treserve("tickets", "api-1", 3)
        >>> ms.tabort("tickets", "api-1")
        3
        """
        return self._ask(requests.tabort(key, writer, ids, except_))

    def trenew(self, key: Key, writer: Key, ms: int, *ids: IdWord) -> int:
        """Restart leases with this length; returns their number. Without IDs all of the writer's.

        >>> _ = ms.treserve("rooms", "api-1", 2)
        >>> ms.trenew("rooms", "api-1", 60_000)
        2
        """
        return self._ask(requests.trenew(key, writer, ms, ids))

    def tposition(
        self,
        key: Key,
        writer: Key | None = None,
        wait: IdWord | None = None,
        ms: int | None = None,
    ) -> ID | None:
        """The position of a stream, or of one of its writers.

        With `wait`, as soon as it is at least that ID; None after `ms`, which never comes if `ms`
        is 0 or None.

        >>> new = ms.tappend("trips", {"n": 1})
        >>> ms.tposition("trips", wait=new, ms=1000) == new
        True
        """
        return self._ask(requests.tposition(key, writer, wait, ms))

    def tpositions(self, key: Key) -> list[WriterPosition[T]]:
        """The positions of the writers of a stream, by name.

        >>> _ = ms.treserve("seats", "api-1")
        >>> [(writer.name, writer.reservations) for writer in ms.tpositions("seats")]
        [('api-1', 1)]
        """
        return self._ask(requests.tpositions(key))

    # ------------------------------------------------------------ streams as a whole

    def tcreate(self, key: Key, floor: IdWord | None = None, parents: Sequence[Key] = ()) -> bool:
        """Create an empty stream, whose entries get IDs above `floor`.

        >>> ms.tcreate("shelf", "17.5")
        True
        """
        return self._ask(requests.tcreate(key, floor, parents))

    def tseal(self, key: Key, *children: Key, elsewhere: bool = False) -> ID:
        """Seal a stream, which continues in its children; returns its final ID.

        With `elsewhere` the children are on other servers, and `tcreate` makes them there. Their
        floor is this ID, or `promised-id` of `tinfo` if it is greater: readers were promised
        that no entry comes up to there.

        >>> last = ms.tappend("whole", {"n": 1})
        >>> ms.tseal("whole", "left", "right") == last
        True
        """
        return self._ask(requests.tseal(key, children, elsewhere))

    @overload
    def tinfo(self, key: Key, group: Key | None = None) -> dict[str, Any] | None: ...
    @overload
    def tinfo(self, key: Key, *, producer: Key) -> int | None: ...
    def tinfo(self, key: Key, group: Key | None = None, *, producer: Key | None = None) -> Any:
        """Details of a stream, or of one of its groups, by the names of the reply; or the last seq
        of a producer.

        None if there is no such key, group or producer.

        >>> new = ms.tappend("cups", {"n": 1})
        >>> ms.tinfo("cups")["last-id"] == new
        True
        """
        if producer is not None:
            return self._ask(requests.tinfo_producer(key, producer))
        return self._ask(requests.tinfo(key, group))

    @overload
    def tpolicy(self, key: Key) -> dict[str, Any] | None: ...
    @overload
    def tpolicy(self, key: Key, **changes: Unpack[requests.PolicyChanges]) -> bool: ...
    def tpolicy(self, key: Key, **changes: Unpack[requests.PolicyChanges]) -> Any:
        """Set limits of the retention policy. Without any, returns the policy or None.

        maxlen, maxage (ms), maxbytes: the limits. exact: evict single entries, not only whole
        blocks. evict: "ACKED" lets the limits take only what no group holds, and "DONE" also
        removes what all groups have acknowledged; hardlen, hardage and hardbytes take more.

        >>> _ = ms.tappend("meter", {"level": 7})
        >>> ms.tpolicy("meter", maxlen=1000)
        True
        >>> ms.tpolicy("meter")["maxlen"]
        1000
        """
        return self._ask(requests.tpolicy(key, changes))


NAMES = [name.upper() for name in vars(StreamCommands) if name[0] != "_"]
"""Each method in capitals. Among these names are the commands whose replies `read_reply` reads."""

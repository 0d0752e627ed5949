"""The commands in the stream of a Redis, which this server obeys.

They run in the handlers that clients use, as one client without permissions: READONLY, maxmemory, a
full disk, ACL and blocking do not apply, and no key expires. What cannot run here is counted by
name, or ends the link: nothing is dropped silently.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from millstream.commands.access.verdict import keys_of
from millstream.commands.later.foreign import SCRIPTS, STRING, foreign_keys
from millstream.commands.runtime.arguments import Args, OwnedArgs
from millstream.commands.runtime.context import Context, Session
from millstream.commands.runtime.replies import Again
from millstream.commands.runtime.source_effects import DROPPED, KNOWN
from millstream.commands.table.registry import COMMANDS, Command
from millstream.commands.xstream.xadd import append_of_source
from millstream.errors import CommandError, printable, readable
from millstream.storage.dump.rdb import UNOWNED
from millstream.storage.dump.skipping import OTHER_TYPES
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

log = logging.getLogger("millstream.replication")

# Of the commands here, those that a source sends.
OBEYED = frozenset(
    b"""
    xadd xdel xtrim xsetid xgroup xclaim xack xackdel xdelex xnack xcfgset xidmprecord
    set setex psetex setnx getset getdel getex append incr decr incrby decrby incrbyfloat increx
    setrange mset msetnx msetex del delex unlink expire pexpire expireat pexpireat persist rename
    renamenx copy move restore restore-asking swapdb flushdb flushall
    """.split()
)
# They set the value of a string whatever it was; the places of their keys.
_SETTING = frozenset(
    b"set setex psetex setnx getset getdel mset msetnx msetex del unlink delex restore".split()
)
# They change a string that has to be known.
_CHANGING = frozenset(
    b"append incr decr incrby decrby incrbyfloat increx setrange".split()  # the key comes first
)
DROPPED_MAX = 1_000_000
_NAMES_MAX = 1000  # of commands that are counted one by one


class CannotFollow(Exception):
    """A command that this server can neither run nor pass over. `is_final`: a full sync does not
    help."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_final = is_final


class Ignored(Counter[str]):
    """The commands that were not run, by name."""

    def note(self, name: bytes) -> None:
        shown = printable(readable(name[:64].lower()))
        if shown not in self and len(self) >= _NAMES_MAX:
            shown = "others"
        self[shown] += 1


class Told(NamedTuple):
    """Callbacks: a message of a channel (and whether it is a shard's), and the source's request for
    an acknowledgement."""

    message: Callable[[bytes, bytes, bool], None]
    wants_ack: Callable[[], None]


class _ObeyedSession(Session):
    """XADD takes the ID of a message from it, and `*` as a repeat, which appends nothing."""

    is_obeyed = True


class Obeyed:
    """Runs the commands of one stream. `database` is the one that is selected in it; `unknown` has
    those of the ignored commands that this version does not know."""

    def __init__(self, context: Context, keyspace: Keyspace, told: Told) -> None:
        self.commands = 0
        self.ignored = Ignored()
        self.unknown = Ignored()
        self._context = context
        self._keyspace = keyspace
        self._told = told
        self._session = _ObeyedSession(0)
        self._handlers: dict[bytes, Callable[[list[bytes]], None]] = {}

    @property
    def database(self) -> int:
        return self._session.db_index

    @database.setter
    def database(self, number: int) -> None:
        if not 0 <= number < len(self._keyspace.databases):
            raise CannotFollow(
                f"the source uses database {number}, and this server has"
                f" {len(self._keyspace.databases)}: set the directive `databases`",
                is_final=True,
            )
        self._session.db_index = number
        self._context.db = self._keyspace.databases[number]

    @contextmanager
    def running(self) -> Iterator[None]:
        """The commands of this turn run within it."""
        context, keyspace = self._context, self._keyspace
        session, may_block, events = context.session, context.may_block, context.events
        errors = context.write_error, context.memory_error
        context.session, context.may_block, context.events = self._session, False, b""
        context.write_error = context.memory_error = None
        context.db = keyspace.databases[self._session.db_index]
        expiring, keyspace.expiring = keyspace.expiring, False
        try:
            yield
        finally:
            keyspace.expiring = expiring
            context.session, context.may_block, context.events = session, may_block, events
            context.write_error, context.memory_error = errors

    # ------------------------------------------------------------ one command

    def append(self, args: Args) -> bool:
        """Run a request that is an XADD with an ID and without options, by far the most frequent
        one, without a copy of its words. False if it is another one."""
        try:
            if append_of_source(self._context, args):
                self.commands += 1
                return True
        except CommandError as error:
            raise self._failure(args.all(), error) from None
        return False

    def run(self, words: list[bytes]) -> None:
        """Run a command, or count it."""
        if words[0] == b"XADD" and self.append(OwnedArgs(words)):
            return
        self.commands += 1
        handler = self._handlers.get(words[0])
        if handler is None:
            handler = self._find(words[0])
        handler(words)

    def _find(self, word: bytes) -> Callable[[list[bytes]], None]:
        name = word.lower()
        special = {
            b"select": self._select, b"ping": self._pass, b"replconf": self._replconf,
            b"publish": self._publish, b"spublish": self._publish, b"xadd": self._xadd,
            b"xclaim": self._of_consumer, b"xgroup": self._of_consumer,
            b"rename": self._move_key, b"renamenx": self._move_key, b"copy": self._move_key,
            b"move": self._move_key, b"restore": self._restore,
            b"restore-asking": self._restore_asking, b"swapdb": self._swap,
            b"flushdb": self._flush, b"flushall": self._flush,
        }  # fmt: skip
        handler = special.get(name)
        if handler is None:
            handler = self._known if name in OBEYED else self._foreign
        if len(self._handlers) < _NAMES_MAX:
            self._handlers[word] = handler
        return handler

    def _pass(self, words: list[bytes]) -> None:
        """Nothing: a sign of life."""

    def _replconf(self, words: list[bytes]) -> None:
        if words[1:2] and words[1].lower() == b"getack":
            self._told.wants_ack()

    def _select(self, words: list[bytes]) -> None:
        if len(words) != 2 or not words[1].isdigit():
            raise CannotFollow("a SELECT without the number of a database")
        self.database = int(words[1])

    def _publish(self, words: list[bytes]) -> None:
        if len(words) == 3:
            self._told.message(words[1], words[2], words[0].lower() == b"spublish")

    # ------------------------------------------------------------ commands that run here

    def _known(self, words: list[bytes]) -> None:
        if self._keyspace.dropped_strings and not self._note_strings(words):
            self.ignored.note(words[0])
            return
        self._call(words)

    def _call(self, words: list[bytes]) -> None:
        name = words[0].lower()
        command: Command = COMMANDS[name]
        args = OwnedArgs(words)
        if command.subcommands and len(words) > 1:
            command = command.subcommands.get(words[1].lower(), command)
            args.pos = 2
        arity = command.arity
        if len(words) != arity and (arity > 0 or len(words) < -arity):
            raise CannotFollow(f"{self._shown(words)} has {len(words)} words")
        context = self._context
        context.db = self._keyspace.databases[self._session.db_index]
        try:
            reply = command.handler(context, args)
            while type(reply) is Again:
                reply = command.handler(context, reply.args)
        except CommandError as error:
            raise self._failure(words, error) from None
        if isinstance(reply, CommandError):
            raise self._failure(words, reply)

    def _failure(self, words: list[bytes], error: CommandError) -> CannotFollow:
        return CannotFollow(f"{self._shown(words)} failed: {error.message}")

    @staticmethod
    def _shown(words: Sequence[bytes]) -> str:
        key = f' of the key "{printable(readable(words[1][:200]))}"' if len(words) > 1 else ""
        return f"{printable(readable(words[0][:64])).upper()}{key}"

    def _xadd(self, words: list[bytes]) -> None:
        changes = self._keyspace.dirty
        if words[2:3] != [b"*"]:  # that is no message of a producer, and no ID of the source
            self._call(words)
        if self._keyspace.dirty == changes:
            self.ignored.note(words[0])

    def _of_consumer(self, words: list[bytes]) -> None:
        """XCLAIM and XGROUP. A consumer with an empty name does not exist here; its pending entries
        belong to the consumer `unowned`, as in an export."""
        place = 3 if words[0].lower() == b"xclaim" else 4
        if len(words) > place and not words[place]:
            if words[1].lower() == b"createconsumer":
                self.ignored.note(words[0])
                return
            words = [*words[:place], UNOWNED, *words[place + 1 :]]
        self._known(words)

    def _restore(self, words: list[bytes]) -> None:
        if len(words) > 3 and words[3] and words[3][0] in OTHER_TYPES:
            self._replace_by_other(words[0], words[1])
        else:
            self._known(words)

    def _restore_asking(self, words: list[bytes]) -> None:
        """The RESTORE of a cluster whose slots move, which Redis passes on as it is."""
        self._restore([b"RESTORE", *words[1:]])

    def _replace_by_other(self, name: bytes, key: bytes) -> None:
        """The key has a value of another type now."""
        self.ignored.note(name)
        self._forget_strings([key])
        self._delete(key)

    def _delete(self, key: bytes) -> None:
        if self._keyspace.databases[self._session.db_index].get(key) is not None:
            self._call([b"DEL", key])

    def _move_key(self, words: list[bytes]) -> None:
        """RENAME, RENAMENX, COPY, MOVE. A key that is not here has another type at the source, or
        is a string whose value is not known."""
        if len(words) < 3:
            raise CannotFollow(f"{self._shown(words)} has {len(words)} words")
        name, here = words[0].lower(), self._session.db_index
        there, target = here, words[2]
        if name == b"move":
            there, target = _database_number(words[2]), words[1]
        elif name == b"copy":
            options = [word.lower() for word in words[3:]]
            if b"db" in options[:-1]:
                there = _database_number(words[3 + options.index(b"db") + 1])
        was_dropped = (here, words[1]) in self._keyspace.dropped_strings
        if self._keyspace.databases[here].get(words[1]) is not None:
            self._forget_strings([target], there)
            self._call(words)
            return
        self.ignored.note(words[0])
        try:
            self.database = there
            self._forget_strings([target])
            self._delete(target)
        finally:
            self.database = here
        if was_dropped:
            if name != b"copy":
                self._forget_strings([words[1]])
            self._remember(there, target)

    def _swap(self, words: list[bytes]) -> None:
        self._call(words)
        if self._keyspace.dropped_strings:
            one, other = _database_number(words[1]), _database_number(words[2])
            swapped = {one: other, other: one}
            moved = [place for place in self._keyspace.dropped_strings if place[0] in swapped]
            for database, key in moved:
                self._forget_strings([key], database)
            for database, key in moved:
                self._remember(swapped[database], key)

    def _flush(self, words: list[bytes]) -> None:
        self._call([words[0]])
        places = self._keyspace.dropped_strings
        everywhere = words[0].lower() == b"flushall"
        for number in {place[0] for place in places}:
            if everywhere or number == self._session.db_index:
                self._context.effects.record(number, KNOWN)
                self._keyspace.dropped_strings = {
                    place for place in self._keyspace.dropped_strings if place[0] != number
                }

    # ------------------------------------------------------------ commands that do not

    def _foreign(self, words: list[bytes]) -> None:
        name = words[0].lower()
        if name in SCRIPTS:
            raise CannotFollow(
                f"the source replicates scripts ({self._shown(words[:1])}), not their effects: set"
                " lua-replicate-commands yes there",
                is_final=True,
            )
        self.ignored.note(name)
        found = foreign_keys(name, words)
        if found is None:
            self._unknown(words)
            return
        for key in found.keys:
            if found.kind == STRING:
                self._drop_string(name, key)
            elif found.replaces:
                self._forget_strings([key])
                self._delete(key)

    def _unknown(self, words: list[bytes]) -> None:
        """A command that this version does not know. Its key is taken to be its first word; it may
        have changed a string."""
        db = self._keyspace.databases[self._session.db_index]
        known = [key for key in words[1:] if isinstance(db.get(key), Stream)]
        if known:
            raise CannotFollow(
                f"{self._shown([words[0], known[0]])}, which is a stream here, is not known to"
                " this version"
            )
        self.unknown.note(words[0])
        for key in words[1:2]:
            if db.get(key) is not None:
                self._drop_string(words[0], key)

    def _drop_string(self, name: bytes, key: bytes) -> None:
        """The source has changed a string in a way that this server cannot repeat."""
        self._delete(key)
        place = self._session.db_index, key
        if place not in self._keyspace.dropped_strings:
            log.warning(
                '%s has changed the string "%s" of database %d at the source: it is dropped here',
                printable(readable(name[:64])).upper(), printable(readable(key[:200])), place[0],
            )  # fmt: skip
            self._remember(*place)

    def _remember(self, database: int, key: bytes) -> None:
        places = self._keyspace.dropped_strings
        if len(places) >= DROPPED_MAX:
            raise CannotFollow(
                f"more than {DROPPED_MAX} strings of the source cannot be followed", is_final=True
            )
        places.add((database, key))
        self._context.effects.record(database, DROPPED, key)

    def _forget_strings(self, keys: Sequence[bytes], database: int | None = None) -> None:
        number = self._session.db_index if database is None else database
        places = self._keyspace.dropped_strings
        gone = [key for key in keys if (number, key) in places]
        if gone:
            places.difference_update((number, key) for key in gone)
            self._context.effects.record(number, KNOWN, *gone)

    def _note_strings(self, words: list[bytes]) -> bool:
        """Note that a command sets dropped strings. False: it needs the value of one."""
        name = words[0].lower()
        if name in _CHANGING:
            return (self._session.db_index, words[1]) not in self._keyspace.dropped_strings
        if name in _SETTING:
            self._forget_strings([key for key, _ in keys_of(COMMANDS[name], words)])
        return True


def _database_number(word: bytes) -> int:
    if not word.isdigit():
        raise CannotFollow(f"{word[:20]!r} in place of the number of a database")
    return int(word)

"""The conditions of WHERE in a request.

Their words, with operators in upper case, are what a group stores and shows: `EntryFilter.words`.
"""

from __future__ import annotations

from millstream.commands.runtime.arguments import Args
from millstream.commands.table.keyspecs import CONDITIONS_MAX, IN_VALUES_MAX
from millstream.errors import SYNTAX, CommandError
from millstream.storage.blocks.entry_filter import OPERATORS, EntryFilter, is_bound

BAD_COUNT = f"ERR WHERE must have from {{}} to {CONDITIONS_MAX} conditions"
BAD_VALUES = f"ERR IN must have from 1 to {IN_VALUES_MAX} values"
BAD_BOUND = "ERR min or max is not a float"


def take_filter(args: Args, least: int = 1) -> EntryFilter | None:
    """Take what follows the word WHERE: a number, at least `least`, and as many conditions. None if
    there is none, which only a group may request."""
    count = args.take_int_between(least, CONDITIONS_MAX, BAD_COUNT.format(least))
    words = [word for _ in range(count) for word in _take_condition(args)]
    return EntryFilter(words) if words else None


def _take_condition(args: Args) -> list[bytes]:
    field, operator = args.take(), args.take().upper()
    if operator not in OPERATORS:
        raise CommandError(SYNTAX)
    if operator == b"IN":
        count = args.take_int_between(1, IN_VALUES_MAX, BAD_VALUES)
        return [field, operator, b"%d" % count, *(args.take() for _ in range(count))]
    if operator == b"BETWEEN":
        bounds = [args.take(), args.take()]
        if not all(map(is_bound, bounds)):
            raise CommandError(BAD_BOUND)
        return [field, operator, *bounds]
    return [field, operator, args.take()]

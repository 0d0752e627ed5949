"""The conditions of WHERE in a request.

Their words, with operators in upper case, are what a group stores and shows: `EntryFilter.words`.
"""

from __future__ import annotations

from millstream.commands.engine.given_options import quoted
from millstream.commands.runtime.arguments import Args, parse_integer
from millstream.errors import SYNTAX, CommandError
from millstream.storage.blocks.entry_filter import (
    CONDITIONS_MAX,
    COUNTED,
    IN_VALUES_MAX,
    OPERANDS,
    EntryFilter,
    is_bound,
)

BAD_COUNT = f"ERR WHERE must have from {{}} to {CONDITIONS_MAX} conditions"
BAD_VALUES = f"ERR IN must have from 1 to {IN_VALUES_MAX} values"
INCOMPLETE = f"{SYNTAX}, a condition of WHERE is not complete"
BAD_BOUND = "ERR min or max is not a float"


def take_filter(args: Args, least: int = 1) -> EntryFilter | None:
    """Take what follows the word WHERE: a number, at least `least`, and as many conditions. None if
    there is none, which only a group may request."""
    count = args.take_int_between(least, CONDITIONS_MAX, BAD_COUNT.format(least))
    words = [word for _ in range(count) for word in _take_condition(args)]
    return EntryFilter(words) if words else None


def skip_filter(args: Args) -> bool:
    """Skip what follows the word WHERE; False if one of its numbers is malformed. An error if words
    are missing or an operator is unknown."""
    count = parse_integer(args.take())
    if count is None or not 0 <= count <= CONDITIONS_MAX:
        return False
    for _ in range(count):
        if args.remaining < 3:
            raise CommandError(INCOMPLETE)
        args.take()
        operator = args.take()
        if operator.upper() not in OPERANDS:
            raise CommandError(f"{SYNTAX}, WHERE has no operator '{quoted(operator)}'")
        operands = OPERANDS[operator.upper()]
        if operands == COUNTED:
            operands = parse_integer(args.take()) or 0
            if not 1 <= operands <= IN_VALUES_MAX:
                return False
        if args.remaining < operands:
            raise CommandError(INCOMPLETE)
        args.pos += operands
    return True


def _take_condition(args: Args) -> list[bytes]:
    words = [args.take(), args.take().upper()]
    operator = words[1]
    if operator not in OPERANDS:
        raise CommandError(SYNTAX)
    count = OPERANDS[operator]
    if count == COUNTED:
        count = args.take_int_between(1, IN_VALUES_MAX, BAD_VALUES)
        words.append(b"%d" % count)
    operands = [args.take() for _ in range(count)]
    if operator == b"BETWEEN" and not all(map(is_bound, operands)):
        raise CommandError(BAD_BOUND)
    return words + operands

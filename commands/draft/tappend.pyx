# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TAPPEND: appending an entry to a stream, the shortest form."""

from millstream.commands.engine.appending cimport append_new
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context

from millstream.commands.table.registry import command
from millstream.errors import wrong_arity


@command(
    "TAPPEND key field value [field value ...]", "write denyoom fast hot nondeterministic_output"
)
def tappend(Context ctx not None, Args args not None):
    """Appends an entry to a stream and returns its ID. Creates the stream if it doesn't exist."""
    if args.count & 1:
        raise wrong_arity("tappend")
    return append_new(ctx, &args.items[1], &args.items[2], args.count - 2, True)

# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TACK: acknowledging entries of a group."""

from millstream.commands.engine.delivery cimport acknowledge
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context

from millstream.commands.table.registry import command


@command("TACK key group id [id ...]", "write fast hot", complexity="O(log n) for each id")
def tack(Context ctx not None, Args args not None):
    """Acknowledges entries of a group, so that they are no longer pending."""
    return acknowledge(ctx, args, True)

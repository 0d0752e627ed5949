# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""XACK: acknowledging entries of a group."""

from millstream.commands.engine.delivery cimport acknowledge
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context

from millstream.commands.table.registry import command


@command(
    "XACK key group id [id ...]", "write fast hot", since="5.0.0", complexity="O(log n) for each id"
)
def xack(Context ctx not None, Args args not None):
    """Acknowledges entries of a group, so that they are no longer pending."""
    return acknowledge(ctx, args, False)

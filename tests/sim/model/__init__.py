"""A naive model of the server's promises: commands on plain data.

The model gets the requests and the times at which the server processed them, runs each command, and
predicts every reply. Where the server has a choice (how late a timer runs, which of two due keys
comes first, which entries are evicted with a block), the model gets the ended waits and the trimmed
entries, and checks that the choice was allowed.

Imports run from top to bottom:

    answers    replies: their values and their bytes
    clients    a client, its expected replies, and its wait
    events     reports of the server to the model
    waits      the clients that wait for keys, in order
    values     databases, expiries, groups, and marks of WATCH
    log        appends and trims of streams, the latter checked by trims
    model      runs requests and timers on these parts; the table of commands
    claims, connection, keys, managed, once, pages, reads, scheduled, streams, transactions    the
               commands
"""

from tests.sim.model import (
    claims,
    connection,
    keys,
    managed,
    once,
    pages,
    reads,
    scheduled,
    streams,
    transactions,
)
from tests.sim.model.model import Model

# Each of these registers its commands.
COMMANDS = (
    claims, connection, keys, managed, once, pages, reads, scheduled, streams, transactions,
)  # fmt: skip

__all__ = ["COMMANDS", "Model"]

"""Commands about what this server does not have: cluster and modules.

Clients and tools ask on the way. The answers are the true ones: no cluster, no modules. What would
load a module is not there at all, so that nobody finds it in COMMAND and counts on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.commands.connection import NO_CLUSTER
from millstream.commands.containers import container
from millstream.commands.registry import command
from millstream.errors import CommandError

if TYPE_CHECKING:
    from millstream.commands.arguments import Args
    from millstream.commands.context import Context


@command(
    "CLUSTER",
    arity=-2,
    group="cluster",
    since="3.0.0",
    summary="A container for Redis Cluster commands.",
    syntax="subcommand [argument ...]",
)
def cluster(ctx: Context, args: Args) -> object:
    """An error, whatever is asked: this server is not part of a cluster."""
    raise CommandError(NO_CLUSTER)


container("MODULE", group="server", since="4.0.0", summary="A container for module commands.")


@command(
    "MODULE|LIST",
    arity=2,
    flags="admin noscript",
    group="server",
    since="4.0.0",
    summary="Returns all loaded modules.",
)
def module_list(ctx: Context, args: Args) -> object:
    """An empty array: there are no modules."""
    return []

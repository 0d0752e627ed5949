"""Commands about absent features: cluster and modules.

Clients and tools send these commands when they connect. They get true replies: no cluster, no
modules. Commands that would load a module are absent, so COMMAND does not list them.
"""

from __future__ import annotations

from millstream.commands.admin.connection import NO_CLUSTER
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.table.containers import Container
from millstream.commands.table.registry import CommandGroup, refuse
from millstream.errors import CommandError

command = CommandGroup("cluster")


# The arity of each subcommand of CLUSTER. A request with a word that is not here, or with the wrong
# number of words, is refused before it is queued by MULTI.
CLUSTER_ARITIES = {
    "addslots": -3,
    "addslotsrange": -4,
    "bumpepoch": 2,
    "count-failure-reports": 3,
    "countkeysinslot": 3,
    "delslots": -3,
    "delslotsrange": -4,
    "failover": -2,
    "flushslots": 2,
    "forget": 3,
    "getkeysinslot": 4,
    "help": 2,
    "info": 2,
    "keyslot": 3,
    "links": 2,
    "meet": -4,
    "migration": -4,
    "myid": 2,
    "myshardid": 2,
    "nodes": 2,
    "replicas": 3,
    "replicate": 3,
    "reset": -2,
    "saveconfig": 2,
    "set-config-epoch": 3,
    "setslot": -4,
    "shards": 2,
    "slaves": 3,
    "slot-stats": -4,
    "slots": 2,
    "syncslots": -3,
}


@command("CLUSTER subcommand [argument ...]", since="3.0.0")
def cluster(ctx: Context, args: Args) -> object:
    """A container for Redis Cluster commands.

    The reply is always an error: this server is not part of a cluster."""
    raise CommandError(NO_CLUSTER)


for name, arity in CLUSTER_ARITIES.items():
    refuse("CLUSTER", name, arity, cluster)


module_command = Container(
    "MODULE", "server", "A container for module commands.", since="4.0.0", tags="admin noscript"
)


@module_command("LIST", "nondeterministic_output_order")
def module_list(ctx: Context, args: Args) -> object:
    """Returns all loaded modules.

    The reply is an empty array: there are no modules."""
    return []

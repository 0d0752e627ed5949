"""Commands about an absent feature: modules.

Clients and tools send MODULE LIST when they connect, and get a true reply. Commands that would load
a module are absent, so COMMAND does not list them.
"""

from __future__ import annotations

from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.table.containers import Container

module_command = Container(
    "MODULE", "server", "A container for module commands.", since="4.0.0", tags="admin noscript"
)


@module_command("LIST", "nondeterministic_output_order")
def module_list(ctx: Context, args: Args) -> object:
    """Returns all loaded modules.

    The reply is an empty array: there are no modules."""
    return []

"""`millstream compare`: the command line that compares files, directories and servers."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from millstream.cli_error import CliError
from millstream.errors import DataError, counted
from millstream.server.moving.compared_sides import open_side
from millstream.server.moving.comparing import Comparison
from millstream.server.moving.key_states import Filters, NotComparable
from millstream.storage.dump.base_making import shown_key

EQUAL, DIFFERENT, NOT_COMPARABLE = range(3)
_CODES = "Exit codes: 0 equal; 1 different; 2 not comparable, or wrong usage."


@click.command(epilog=_CODES)
@click.argument("a")
@click.argument("b")
@click.option("--key", "patterns", multiple=True, metavar="PATTERN", help="Only these keys.")
@click.option(
    "--db",
    "databases",
    multiple=True,
    type=click.IntRange(min=0),
    metavar="N",
    help="Only this database.",
)
@click.option(
    "--strings",
    type=click.Choice(["keep", "skip"]),
    default="keep",
    help="Whether strings are compared. [keep]",
)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(min=0),
    default=2.0,
    metavar="S",
    help="Differences of a running server count after this many seconds. [2]",
)
@click.option(
    "--as-replica", is_flag=True, help="B is a replica of A: without what Redis does not replicate."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def compare(a: str, b: str, **given: Any) -> None:
    """Compare the streams and strings of two files, data directories or servers.

    A and B: a dump.rdb, an AOF, a data directory that no server uses, or redis://, rediss:// or
    unix://.
    Prints the first difference of each key.
    """
    filters = Filters(
        tuple(pattern.encode("utf-8", "surrogateescape") for pattern in given["patterns"]),
        frozenset(given["databases"]) or None,
        given["strings"] == "keep",
    )
    try:
        sides = open_side(a), open_side(b)
        comparison = Comparison(*sides, as_replica=given["as_replica"])
        result = comparison.run(filters, given["settle_s"])
    except (NotComparable, DataError, CliError) as problem:
        text = problem.message if isinstance(problem, CliError) else str(problem)
        click.echo(f"millstream: {text}", err=True)
        sys.exit(NOT_COMPARABLE)
    if given["as_json"]:
        click.echo(json.dumps(result.as_dict((sides[0].name, sides[1].name))))
    else:
        for (database, key), sentence in sorted(result.different.items()):
            click.echo(f'database {database}, key "{shown_key(key)}": {sentence}')
        compared = counted(result.keys, "key")
        different = len(result.different)
        click.echo(
            f"{compared} compared, {different} different" if different else f"{compared}: equal"
        )
        for note in result.notes:
            click.echo(f"note: {note}")
        if result.not_compared:
            click.echo(
                f"not compared, because one side does not have it: "
                f"{', '.join(sorted(result.not_compared))}"
            )
    sys.exit(DIFFERENT if result.different else EQUAL)

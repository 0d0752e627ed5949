"""The option --url-file: a URL in a file, where no list of processes shows its password."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
KEY = "millstream.url_file"  # of the file's URL in a context of click


def url_file_option(error: type[click.ClickException]) -> Callable[[F], F]:
    """The option. A file that has no URL is this error."""

    def note(ctx: click.Context, param: click.Parameter, file: Path | None) -> None:
        """Read the file before the URL is looked at."""
        if file is None:
            return
        try:
            words = file.read_text(encoding="utf-8-sig").split()
        except (OSError, UnicodeDecodeError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise error(f"{file} cannot be read: {reason}") from None
        if len(words) != 1:
            raise error(f"{file} has {len(words)} words; it needs one, the URL of the server")
        ctx.meta[KEY] = words[0]

    return click.option(
        "--url-file",
        type=click.Path(dir_okay=False, path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=note,
        metavar="FILE",
        help="File with this URL, for a password that no list of processes shows.",
    )


def url_of_file(ctx: click.Context, parameter: str, shown: str) -> str | None:
    """The URL in the file, which takes precedence over the environment; None without a file. A
    command line that also has the URL (`shown`) is wrong."""
    if KEY not in ctx.meta:
        return None
    if ctx.get_parameter_source(parameter) is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError(f"{shown} and --url-file exclude each other.", ctx)
    url: str = ctx.meta[KEY]
    return url

"""The end of a command line program with one sentence."""

from __future__ import annotations

from typing import Any

import click


class CliError(click.ClickException):
    """Ends the program with one sentence on standard error, and exit code 1."""

    def show(self, file: Any = None) -> None:
        click.echo(f"millstream: {self.message}", err=True)

"""`millstream completion`: the script with which a shell completes the words of this program."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "millstream"
VARIABLE = "_MILLSTREAM_COMPLETE"  # where click looks for a shell's question


@click.command(
    epilog='To use it: eval "$(millstream completion bash)" in ~/.bashrc, the same with zsh in '
    "~/.zshrc, or millstream completion fish > ~/.config/fish/completions/millstream.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands and options in a shell."""
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, PROGRAM, VARIABLE).source())

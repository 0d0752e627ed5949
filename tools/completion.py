"""`millstream completion`: the script with which a shell completes the words of this program."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "millstream"
VARIABLE = "_MILLSTREAM_COMPLETE"  # where click looks for a shell's question

# `millstream-server` has no commands: its directives are completed from its help, and file names.
_DIRECTIVES = r"--help | sed -n 's/^  \(--[a-z0-9-]*\) .*/\1/p'"
SERVER_SCRIPTS = {
    "bash": f"""
_millstream_server_completion() {{
    local word=${{COMP_WORDS[COMP_CWORD]}}
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$("$1" {_DIRECTIVES})" -- "$word"))
    else
        COMPREPLY=($(compgen -f -- "$word"))
    fi
}}
complete -o filenames -F _millstream_server_completion millstream-server
""",
    "zsh": f"""
_millstream_server_completion() {{
    if [[ ${{words[CURRENT]}} == -* ]]; then
        compadd -- ${{(f)"$(${{words[1]}} {_DIRECTIVES})"}}
    else
        _files
    fi
}}
compdef _millstream_server_completion millstream-server
""",
    "fish": f"""
complete -c millstream-server -n 'string match -q -- "-*" (commandline -ct)' -f \
    -a "(millstream-server {_DIRECTIVES})"
""",
}


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
    click.echo(SERVER_SCRIPTS[shell])

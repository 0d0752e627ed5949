"""From the lines of files and command lines to a `Config`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from millstream.errors import StartError
from millstream.server.config.cluster_directives import NODE_COUNT_VARIABLE
from millstream.server.config.directives import DIRECTIVES, Config, find_directive
from millstream.server.config.exposed_secrets import has_password
from millstream.server.config.ignored_directives import ALIASES
from millstream.server.config.kinds import SECRET
from millstream.server.config.lines import Line, read_arguments, read_file

REFUSED = {
    "rename-command": (
        "rename-command is not supported; access rules do the same for each user: a line "
        "`user default on nopass ~* &* +@all -flushall` forbids FLUSHALL"
    ),
    "tls-ciphersuites": (
        "tls-ciphersuites is not supported, because Python cannot choose the ciphers of TLS 1.3; "
        "remove the line"
    ),
}


def apply_lines(config: Config, lines: Iterable[Line]) -> None:
    """Set directives in order; StartError names the place, the directive and what is wrong.

    A later line replaces an earlier one; repeated lines of `save` in files are combined.
    """
    saves: dict[bool, list[str]] = {}
    for line in lines:
        where, name, words = line
        if name == "user":
            config.user_lines.append(line)
            if has_password(words[1:]):
                _note_password(config, line)
            continue
        if name in REFUSED:
            raise StartError(f"{where}: {REFUSED[name]}")
        directive = find_directive(name)
        if directive is None:
            raise StartError(f"{where}: unknown directive '{name}'{_suggestion(name)}")
        if not words or (len(words) > 1 and not directive.kind.many):
            raise StartError(f"{where}: {name}: takes {'a' if not words else 'one'} value")
        if name == "save":
            earlier = saves.get(line.is_in_a_file, [])
            words = saves[line.is_in_a_file] = [*earlier, *words] if words != [""] else [""]
        try:
            value = config.parsed(directive.name, " ".join(words))
        except ValueError as problem:
            raise StartError(f"{where}: {name}: {problem}") from None
        directive.set_in(config, value)
        if directive.kind is SECRET and value:
            _note_password(config, line)


def _note_password(config: Config, line: Line) -> None:
    if line.is_in_a_file and line.file not in config.files_with_passwords:
        config.files_with_passwords.append(line.file)


def _suggestion(name: str) -> str:
    """A question with the nearest name of a directive; empty if none is near."""
    from difflib import get_close_matches

    if name == "check":
        return "; `millstream serve --check` checks a configuration"

    near = get_close_matches(name, [*DIRECTIVES, *ALIASES, "include", "user"], n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def load(file: Path | None, arguments: Sequence[str]) -> Config:
    """Defaults, then the file, then the command line. A node has its share of the memory."""
    config = Config()
    apply_lines(config, [] if file is None else read_file(file, config.sources))
    apply_lines(config, read_arguments(arguments, config.sources))
    count = int(os.environ.get(NODE_COUNT_VARIABLE, "1"))
    config.maxmemory = max(config.maxmemory // count, min(config.maxmemory, 1))
    cluster = config.cluster
    cluster.enabled = cluster.enabled or bool(cluster.name)
    for directive, is_given in (
        ("cluster-etcd", bool(cluster.etcd)),
        ("cluster-shard", cluster.shard != "auto"),
    ):
        if is_given and not cluster.name:
            raise StartError(f"{directive} needs cluster-name, the name of the cluster in etcd")
    return config

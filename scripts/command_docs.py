"""Writes the generated documentation: one page per command, the lists of directives and metrics,
and those of commands and decisions in the site's navigation.

    scripts/command_docs.py           write docs/commands/, the tables in docs/configuration.md and
                                      docs/metrics.md, and two lists in mkdocs.yml
    scripts/command_docs.py --check   exit code 1 if they are not current

A command's page comes from its row in the registry. Longer text is
written by hand into the page itself, between the two marks of DETAILS, and is kept. In
docs/configuration.md and docs/metrics.md only the part between the two marks is generated.
"""

import re
import sys
from pathlib import Path

from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS, Command
from millstream.commands.table.syntax import shown_syntax
from millstream.server.config.directives import DIRECTIVES, Config, Directive
from millstream.server.config.ignored_directives import ALIASES
from millstream.server.config.kinds import COMPATIBILITY
from millstream.server.metrics.metric_table import SECTIONS as METRICS

DOCS = Path(__file__).resolve().parent.parent / "docs"
SITE = DOCS.parent / "mkdocs.yml"
BEGIN, END = "<!-- directives: begin -->", "<!-- directives: end -->"
METRICS_MARKS = "<!-- metrics: begin -->", "<!-- metrics: end -->"
WRITTEN = "<!-- Written by scripts/command_docs.py from the command table: change the handler. -->"
DETAILS = "<!-- by hand: begin -->", "<!-- by hand: end -->"
GROUPS = {
    "stream": "Streams",
    "generic": "Keys",
    "string": "Strings",
    "pubsub": "Publish and subscribe",
    "connection": "Connections",
    "scripting": "Scripts",
    "cluster": "Cluster",
    "server": "Server",
}


def title(row: Command) -> str:
    return row.name.replace("|", " ").upper()


def file_name(row: Command) -> str:
    return f"{row.name}.md"


def description(row: Command) -> str:
    """The description in the row, unwrapped into paragraphs."""
    paragraphs = (lines.split("\n") for lines in re.split(r"\n\s*\n", row.description))
    kept = [
        "\n".join(lines) if any(line.startswith((" ", "-", "*", "|")) for line in lines)
        else " ".join(lines)
        for lines in paragraphs
    ]  # fmt: skip
    return "\n\n".join(kept)


def facts(row: Command) -> list[str]:
    flags = ", ".join(f"`{flag}`" for flag in sorted(row.flags)) or "none"
    names = ", ".join(f"`@{name}`" for name in sorted(row.categories))
    return [
        f"| since | {row.since} |",
        f"| complexity | {row.complexity} |",
        f"| arity | {row.arity} |",
        f"| flags | {flags} |",
        f"| ACL categories | {names} |",
    ]


def details(path: Path) -> str:
    """The handwritten part of a command's page, including its marks; "" if there is none."""
    begin, end = DETAILS
    text = path.read_text() if path.exists() else ""
    if begin not in text and end not in text:
        return ""
    if [text.count(begin), text.count(end)] != [1, 1] or text.index(end) < text.index(begin):
        raise ValueError(
            f"{path.name}: the handwritten part needs exactly one {begin} and one {end}"
        )
    return text[text.index(begin) : text.index(end)] + end


def section(row: Command, level: int, by_hand: str = "") -> str:
    usage = f"{title(row)} {shown_syntax(row.syntax)}".rstrip()
    parts = [f"{'#' * level} {title(row)}", f"```\n{usage}\n```", row.summary]
    text = description(row)
    if text:
        parts.append(text)
    if by_hand:
        parts.append(by_hand)
    parts.append("\n".join(["| | |", "|---|---|", *facts(row)]))
    return "\n\n".join(parts)


def page(row: Command, by_hand: str = "") -> str:
    """A command with its subcommands except HELP."""
    subs = [sub for name, sub in sorted(row.subcommands.items()) if name != b"help"]
    parts = [section(row, 1, by_hand), *(section(sub, 2) for sub in subs)]
    return WRITTEN + "\n\n" + "\n\n".join(parts) + "\n"


def groups() -> dict[str, list[Command]]:
    """The commands by the heading of their group."""
    named = list(GROUPS) + sorted({row.group for row in COMMANDS.values()} - GROUPS.keys())
    found = {
        GROUPS.get(group, group.capitalize()): sorted(
            (row for row in COMMANDS.values() if row.group == group), key=title
        )
        for group in named
    }
    return {heading: rows for heading, rows in found.items() if rows}


def index() -> str:
    lines = [WRITTEN, "", "# Commands", ""]
    for heading, rows in groups().items():
        lines += [f"## {heading}", "", "| command | |", "|---|---|"]
        lines += [f"| [{title(row)}]({file_name(row)}) | {row.summary} |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def command_pages() -> dict[Path, str]:
    """Every file of docs/commands and its text."""
    load_table()
    paths = {DOCS / "commands" / file_name(row): row for row in COMMANDS.values()}
    pages = {path: page(row, details(path)) for path, row in paths.items()}
    return {**pages, DOCS / "commands" / "README.md": index()}


def _readable(config: Config, directive: Directive) -> str:
    """A default value in the form that a user would write."""
    if directive.name == "dir":
        return "data"
    shown = config.shown(directive.name)
    if directive.kind.name == "size" and int(shown) and int(shown) % 1024**2 == 0:
        return f"{int(shown) // 1024**2}mb"
    return shown or '""'


def directive_table() -> str:
    config = Config()
    lines: list[str] = []
    sections = dict.fromkeys(directive.section for directive in DIRECTIVES.values())
    for name in sections:
        rows = [directive for directive in DIRECTIVES.values() if directive.section == name]
        mark = _accepted_row if name == COMPATIBILITY else _row
        last = "older name" if name == COMPATIBILITY else ""
        lines += [
            f"### {name}",
            "",
            f"| directive | default | values | changed by CONFIG SET | {last} |",
        ]
        lines.append("|---|---|---|---|---|")
        lines += [mark(config, directive) for directive in rows]
        lines.append("")
    return "\n".join(lines)


def _row(config: Config, directive: Directive) -> str:
    mutable = "yes" if directive.mutable else "no"
    return (
        f"| `{directive.name}` | `{_readable(config, directive)}` | {directive.kind.name} | "
        f"{mutable} | {directive.meaning} |"
    )


def _accepted_row(config: Config, directive: Directive) -> str:
    older = ", ".join(f"`{name}`" for name, new in ALIASES.items() if new == directive.name)
    mutable = "yes" if directive.mutable else "no"
    return (
        f"| `{directive.name}` | `{_readable(config, directive)}` | {directive.kind.name} | "
        f"{mutable} | {older} |"
    )


def configuration_page() -> str:
    """docs/configuration.md with the current table between its marks."""
    text = (DOCS / "configuration.md").read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{directive_table()}\n{END}{after}"


def metrics_table() -> str:
    lines: list[str] = []
    for section, families in METRICS.items():
        lines += [f"### {section}", "", "| metric | type | |", "|---|---|---|"]
        lines += [f"| `{one.name}` | {one.kind} | {one.meaning} |" for one in families]
        lines.append("")
    return "\n".join(lines)


def metrics_page() -> str:
    """docs/metrics.md with the current table between its marks."""
    begin, end = METRICS_MARKS
    text = (DOCS / "metrics.md").read_text()
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{metrics_table()}\n{end}{rest.split(end)[1]}"


def site_configuration() -> str:
    """mkdocs.yml with the pages of commands, by group, and of decisions, by number."""
    lines = ["- commands/README.md"]
    for heading, rows in groups().items():
        lines.append(f"- {heading}:")
        lines += [f"    - {title(row)}: commands/{file_name(row)}" for row in rows]
    text = _listed(SITE.read_text(), "commands", lines)
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    lines = ["README.md", *(page.name for page in pages)]
    return _listed(text, "decisions", [f"- decisions/{name}" for name in lines])


def _listed(text: str, name: str, lines: list[str]) -> str:
    """The text with these lines between the two marks of a list."""
    indent = " " * 6
    begin, end = f"{indent}# {name}: begin\n", f"{indent}# {name}: end\n"
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    return before + begin + "".join(f"{indent}{line}\n" for line in lines) + end + after


def wanted() -> dict[Path, str]:
    return {
        **command_pages(),
        DOCS / "configuration.md": configuration_page(),
        DOCS / "metrics.md": metrics_page(),
        SITE: site_configuration(),
    }


def stray() -> list[Path]:
    """Pages of commands that no longer exist."""
    return sorted(set((DOCS / "commands").glob("*.md")) - command_pages().keys())


def main() -> int:
    files, gone = wanted(), stray()
    old = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in [*old, *gone]:
            print(f"not current: {path.relative_to(DOCS.parent)}", file=sys.stderr)
        return 1 if old or gone else 0
    for path in old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path])
    for path in gone:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())

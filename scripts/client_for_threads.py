"""Writes the client for threads: the modules of client/threads/ that are the same as in client/aio/
without `async` and `await`.

    .venv/bin/python scripts/client_for_threads.py           write them
    .venv/bin/python scripts/client_for_threads.py --check   exit code 1 if one is not current

`await` is easier to remove than to add, so the asyncio client is the source. Docstrings and their
examples are changed with the code. Two comments at the end of a line say what threads do not have:

    if not self._opened:  # asyncio only
        the statement is left out, with its block
    class Pipeline(  # type: ignore[misc]  # asyncio: ...
        only the comment is left out
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES = ["command_calls", "commands", "connection", "consumer", "running", "stream", "writer"]
HEAD = "# Generated from {} by scripts/client_for_threads.py: change it there.\n"
QUEUED = "client/queued.py"
QUEUED_HEAD = (
    "    # Written by scripts/client_for_threads.py: one line for each method of StreamCommands.\n"
)

ONLY = "# asyncio only"
# Names and phrases, in docstrings too.
WORDS = [
    (r"  # type: ignore\[[\w-]+\]  # asyncio:.*", ""),
    (r"millstream\.client\.aio\b(?=\.\w)", "millstream.client.threads"),
    (r"millstream\.client\.aio\b", "millstream.client"),
    (r"\bredis\.asyncio\b", "redis"),
    (r"\bimport asyncio\b", "import time"),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\bAsync(Iterator|Generator)\b", r"\1"),
    (r"\b__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\ba(close|iter|next)\(", r"\1("),
    (r"All tasks of one event loop may share a client: the loop that used it first\.",
     "Any thread may use a client."),
    (r"\. For asyncio\.|, for asyncio\.", "."),
    (r"\btask(s?)\b(?=\s+(?:at a|may)\b)", r"thread\1"),
]  # fmt: skip
ASYNC = re.compile(r"\basync\s+(?=def\b|with\b|for\b)")
AWAIT = re.compile(r"(\(?)\bawait\s+")
PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|.', re.DOTALL)  # a string or a character
NAME_BEFORE = re.compile(r"[\w\])]\($")  # the parenthesis of a call


def for_threads(text: str, source: str) -> str:
    """The text of a module for threads."""
    text = without_asyncio_only(text)
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    return HEAD.format(source) + without_await(ASYNC.sub("", text))


def without_asyncio_only(text: str) -> str:
    """Leave out each statement whose first line ends with the comment `# asyncio only`."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and lines[node.lineno - 1].rstrip().endswith(ONLY):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    left = "".join(lines)
    if ONLY in left:
        raise ValueError(f"a comment {ONLY!r} is not at the end of a statement's first line")
    return left


def without_await(text: str) -> str:
    """Remove each `await`, and parentheses that stand only because of it: `(await f())["n"]`."""
    while found := AWAIT.search(text):
        before, rest = text[: found.start()], text[found.end() :]
        if found[1]:
            end = end_of_operand(rest)
            if NAME_BEFORE.search(before[-1:] + "(") or rest[end : end + 1] != ")":
                text = f"{before}({rest}"
            else:
                text = before + rest[:end] + rest[end + 1 :]
        else:
            text = before + rest
    return text


def end_of_operand(text: str) -> int:
    """The end of a name with its attributes, calls and subscripts."""
    depth = 0
    for found in PIECE.finditer(text):
        if found[0] in "([{":
            depth += 1
        elif found[0] in ")]}" and depth:
            depth -= 1
        elif not depth and not re.match(r"[\w.]", found[0]):
            return found.start()
    return len(text)


def formatted(text: str, path: Path) -> str:
    """As ruff writes it: sorted imports, and none that is not used."""
    ruff = [Path(sys.executable).with_name("ruff")]
    for words in (
        ["check", "--fix-only", "--select=I,F401"],
        ["format"],
    ):
        given = ["--quiet", f"--config={ROOT / 'pyproject.toml'}", "--stdin-filename", path, "-"]
        text = subprocess.run(
            [*ruff, *words, *given],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
    return text


def with_queued_methods(text: str, commands: str) -> str:
    """The module of pipelines, with each method of StreamCommands."""
    [commands_class] = [
        node
        for node in ast.parse(commands).body
        if isinstance(node, ast.ClassDef) and node.name == "StreamCommands"
    ]
    names = {
        node.name
        for node in commands_class.body
        if isinstance(node, ast.AsyncFunctionDef) and node.name[0] != "_"
    }
    lines = [f"    {name} = queued(StreamCommands.{name})\n" for name in sorted(names)]
    return text.partition(QUEUED_HEAD)[0] + QUEUED_HEAD + "".join(lines)


def wanted(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Each generated file with its text."""
    for name in MODULES:
        source = f"client/aio/{name}.py"
        target = root / "client/threads" / f"{name}.py"
        yield target, formatted(for_threads((root / source).read_text(), source), target)
    commands = (root / "client/aio/commands.py").read_text()
    yield root / QUEUED, with_queued_methods((root / QUEUED).read_text(), commands)


def main(words: list[str], root: Path = ROOT) -> int:
    old = {
        path: text for path, text in wanted(root) if not path.exists() or path.read_text() != text
    }
    if "--check" in words:
        for path in old:
            print(
                f"{path.relative_to(root)} is not current: run scripts/client_for_threads.py",
                file=sys.stderr,
            )
        return 1 if old else 0
    for path, text in old.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One name for one thing, and titles that are nouns or verbs."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    *("server", "commands", "storage", "pipeline", "cdc", "client", "tools", "dashboard"),
    "src/millstream",
)
TWINS = "client/aio/"  # each of its modules is the asyncio version of the module with its name

# Names of modules in two folders. The list may only shrink.
TWICE = {
    *("clients", "connection", "errors", "ids"),
    *("log", "memory", "pubsub", "records", "stream"),
}


def modules() -> dict[str, list[str]]:
    """The paths of all modules, by name."""
    found = defaultdict(list)
    for folder in FOLDERS:
        paths = (ROOT / folder).glob("*" if folder.startswith("src") else "**/*")
        for path in paths:
            name = str(path.relative_to(ROOT))
            is_twin = name.startswith(TWINS)
            if re.fullmatch(r"(?!__)\w+\.pyx?", path.name) and not is_twin:
                found[path.stem].append(name)
    return found


def test_a_module_has_a_name_of_its_own() -> None:
    again = {name: paths for name, paths in modules().items() if len(paths) > 1}
    assert {name: again[name] for name in again.keys() - TWICE} == {}


QUESTION = re.compile(r"(?:What|Whether|How|Who|Where|Why|When|Which)\b.*")


def titles(path: Path) -> Iterator[str]:
    """The docstrings of a file that has a question after three quotes; all texts after three quotes
    of a file of Cython."""
    text = path.read_text()
    texts = re.findall(r'"""(.*)', text)
    if path.suffix != ".py":
        yield from texts
        return
    for node in ast.walk(ast.parse(text)) if any(map(QUESTION.match, texts)) else ():
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def test_titles_are_nouns_or_verbs() -> None:
    """A title says what a thing is or does: 'Checks a configuration without starting'."""
    questions = [
        f"{path.relative_to(ROOT)}: {question[0]}"
        for folder in (*FOLDERS, "bench", "scripts", "tests")
        for path in (ROOT / folder).glob("*" if folder.startswith("src") else "**/*")
        if path.suffix in (".py", ".pyx")
        for title in titles(path)
        if (question := QUESTION.match(title))
    ]
    assert questions == []

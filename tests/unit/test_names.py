"""One name for one thing, and titles that are nouns or verbs."""

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    *("server", "commands", "storage", "pipeline", "cdc", "client", "tools", "dashboard"),
    "src/millstream",
)
TWINS = "client/aio/"  # each of its modules is the asyncio version of the module with its name

# Names of modules in two folders. The list may only shrink.
TWICE = {
    *("absent", "arguments", "clients", "connection", "errors", "events", "ids"),
    *("lineage", "log", "memory", "pubsub", "records", "replies", "restrictions", "stream"),
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


# Folders in which no title begins with a question word. The list may only grow.
WITH_NOUNS_AND_VERBS = (
    *("pipeline", "cdc", "tools", "dashboard", "src/millstream", "bench", "scripts"),
)
QUESTION = re.compile(
    r'^[ \t]*[rR]?"""(?:What|Whether|How|Who|Where|Why|When|Which)\b.*', re.MULTILINE
)


def test_titles_are_nouns_or_verbs() -> None:
    """A title says what a thing is or does: 'Checks a configuration without starting'."""
    questions = [
        f"{path.relative_to(ROOT)}: {title.strip()}"
        for folder in WITH_NOUNS_AND_VERBS
        for path in (ROOT / folder).glob("*" if folder.startswith("src") else "**/*")
        if re.fullmatch(r"\.py[ix]?|\.pxd", path.suffix)
        for title in QUESTION.findall(path.read_text())
    ]
    assert questions == []

"""The rules of the codebase that no other tool checks.

Ruff, mypy and import-linter read only Python. Here are the rules about folders, about the files of
Cython, about the words of texts, and about what must not be left in the repository. Each test
collects every offence before it fails, so one run shows everything that has to be fixed.
"""

import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

from tests.support.import_rings import arrows, imported, rings

from millstream.commands.runtime.keyspace_events import EVENT_CLASSES, LETTERS

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

COMMON = ROOT / "src" / "millstream"
PACKAGES = {"server", "commands", "storage", "pipeline", "cdc", "client", "tools", "dashboard"}
TOP_LEVEL = {".ci", ".github", "bench", "deploy", "docs", "scripts", "src", "tests"} | PACKAGES

# The packages that a file may import from, in addition to its own and the common package, which
# may import none.
BELOW = {
    "server": {"commands", "storage", "tools"},
    "commands": {"storage"},
    "storage": set(),
    "pipeline": {"storage"},
    "cdc": {"pipeline", "storage"},
    "client": set(),
    "tools": set(),
    "dashboard": set(),
}

# The folders of a package, each above those that it may import from.
LAYERS = {
    "server": [
        "gateway",
        "cluster",
        "moving",
        "backup",
        "repair",
        "metrics",
        "net",
        "replication",
        "durability",
        "execution",
        "monitor",
        "protocol",
        "config",
    ],
    "commands": [
        "xstream",
        "draft",
        "admin",
        "generic",
        "engine",
        "access",
        "later",
        "table",
        "runtime",
    ],
    "storage": [
        "dump",
        "files",
        "capture",
        "keyspace",
        "reservations",
        "streams",
        "groups",
        "log",
        "blocks",
    ],
}
TYPES_ONLY = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)+", re.MULTILINE)

IMPORT = re.compile(r"^\s*(?:from|import|cimport)\s+(\.|millstream\b[.\w]*)(.*)", re.MULTILINE)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home)/")
# Texts that are not ours to change: the licence, and recordings of what Redis answers to what.
NOT_OURS = {
    "LICENSE",
    "dashboard/static/uPlot.LICENSE.txt",
    "tests/compat/side_by_side.txt",
}
RECORDINGS = "tests/compat/golden/"
WORDS_TO_AVOID = Path(__file__).with_name("words_to_avoid.txt")
TEST_NAME = re.compile(r"\bdef test_\w+")
NAME_OF_TEST = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
TEST_NAME_LENGTH_MAX = 60
CHANGELOG_WORDS_MAX = 1800
MARKER = re.compile(r"\b(?:TO[D]O|FIX[M]E)\b")  # the brackets keep it from finding itself


@cache
def tracked() -> list[Path]:
    """Every file that is in git or would be added to it, links left out."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = (ROOT / name for name in listing.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def sources(*suffixes: str) -> list[Path]:
    """The files of the common package and of the others that end in one of `suffixes`."""
    return [path for path in tracked() if path.suffix in suffixes and package_of(path)]


def package_of(path: Path) -> str:
    """`storage` for storage/blocks/block.pyx, `millstream` for the common package's, else ""."""
    top = path.relative_to(ROOT).parts[0]
    return "millstream" if path.parent == COMMON else top if top in PACKAGES else ""


def matching_lines(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{named(path)}:{number}: {line.strip()}"
        for path in tracked()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def packages_in(names: list[str]) -> set[str]:
    """`storage` for `src/millstream/storage`."""
    return {name.rsplit("/", 1)[-1] for name in names}


def imported_packages(module: str, rest: str) -> set[str]:
    """The packages an import names: `from millstream.storage.blocks.block cimport X` names
    storage."""
    if module == "millstream":
        return set(re.findall(r"\w+", rest)) & PACKAGES
    return {module.split(".")[1]} & PACKAGES


def test_packages_are_the_folders_and_the_links() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"bench", "tests"}
    assert folders == PACKAGES
    assert {link.name for link in COMMON.iterdir() if link.is_symlink()} == folders
    ruff = PYPROJECT["tool"]["ruff"]
    assert packages_in(ruff["extend-exclude"]) == folders
    assert set(ruff["lint"]["flake8-tidy-imports"]["banned-api"]) == folders


def test_links_are_relative() -> None:
    targets = {link.name: str(link.readlink()) for link in COMMON.iterdir() if link.is_symlink()}
    assert targets == {name: f"../../{name}" for name in targets}


def test_imports_run_one_way() -> None:
    wrong = []
    for path in sources(".py", ".pyi", ".pyx", ".pxd"):
        if path == COMMON / "__main__.py":  # the entry point imports every package
            continue
        package = package_of(path)
        allowed = BELOW[package] | {package} if package in BELOW else set()
        if path == COMMON / "__init__.py":  # millstream.connect, imported when it is first used
            allowed = {"client"}
        for module, rest in IMPORT.findall(path.read_text()):
            if module == ".":
                wrong.append(f"{named(path)}: imports are absolute")
                continue
            others = sorted(imported_packages(module, rest) - allowed)
            wrong += [f"{named(path)}: imports {other}, which is not below it" for other in others]
    assert wrong == []


def imported_folders(path: Path) -> set[str]:
    """The folders of a file's package from which it imports at run time."""
    text = TYPES_ONLY.sub("", path.read_text())
    package, folder = path.relative_to(ROOT).parts[:2]
    names = (module.split(".") for module, _ in IMPORT.findall(text))
    inside = {name[2] for name in names if name[1:2] == [package] and len(name) > 3}
    return inside - {folder}


def test_imports_between_folders_run_one_way() -> None:
    wrong = []
    for path in sources(".py", ".pyx", ".pxd"):
        package, *inside = path.relative_to(ROOT).parts
        layers = LAYERS.get(package)
        if layers is None or len(inside) == 1:  # server/app and server/process use every folder
            continue
        assert inside[0] in layers, f"{named(path)}: a folder without a place in LAYERS"
        above = imported_folders(path) & set(layers[: layers.index(inside[0])])
        wrong += [f"{named(path)}: imports {folder}, which is above it" for folder in above]
    assert wrong == []


def module_of(path: Path) -> str:
    """`millstream.storage.ids` for storage/ids.pyx and its declarations."""
    inside = path.relative_to(COMMON if path.parent == COMMON else ROOT).with_suffix("")
    return ".".join(("millstream", *(name for name in inside.parts if name != "__init__")))


def test_imports_form_no_ring() -> None:
    """Imports for types, imports inside functions and cimports are included."""
    files = [(module_of(path), path.read_text()) for path in sources(".py", ".pyi", ".pyx", ".pxd")]
    assert [sorted(ring) for ring in rings(arrows(files))] == []


def test_rings_are_found_in_every_form_of_import() -> None:
    modules = {"millstream.a", "millstream.a.b", "millstream.c", "millstream.d"}
    text = """
from millstream.a import b, Other
from millstream.c cimport (
    One,  # millstream.d
)
    import millstream.d
"""
    assert imported(text, modules) == modules
    assert imported("from millstream.a import (\n    b as x,\n)\n", modules) == {"millstream.a.b"}
    found = rings({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"f"}})
    assert sorted(map(sorted, found)) == [["a", "b", "c"], ["d", "e"]]


def test_types_belong_to_compiled_modules() -> None:
    """A .pxd that is missing fails the build, and a .pyi that is missing fails mypy."""
    stray = [path for path in sources(".pyi") if not path.with_suffix(".pyx").exists()]
    assert sorted(named(path) for path in stray) == []


def test_no_path_of_a_developer_machine() -> None:
    assert matching_lines(MACHINE_PATH) == []


def test_no_markers_of_unfinished_work() -> None:
    assert matching_lines(MARKER) == []


def whole_words(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.])(?:{pattern})(?!\w)", re.IGNORECASE)


def word_list() -> list[tuple[str, str]]:
    """The rows of the word list: a regular expression, and a replacement."""
    rows = [line for line in WORDS_TO_AVOID.read_text().splitlines() if not line.startswith("#")]
    pairs = (row.rsplit("|", 1) for row in rows)
    return [(words.strip(), advice.strip()) for words, advice in pairs]


@cache
def words_to_avoid() -> list[tuple[re.Pattern[str], str]]:
    """The same, with a pattern for whole words."""
    return [(whole_words(words), advice) for words, advice in word_list()]


@cache
def any_word_to_avoid() -> re.Pattern[str]:
    """One pattern for all rows: nearly every text has none, and is then read only once."""
    return whole_words("|".join(f"(?:{words})" for words, _ in word_list()))


def avoidable(text: str) -> list[tuple[int, str, str]]:
    """(line, words, advice) for each phrase of the list in a text. Names of tests are read with
    spaces in place of the underscores."""
    plain = TEST_NAME.sub(lambda name: name[0].replace("_", " "), text)
    if not any_word_to_avoid().search(plain):
        return []
    return sorted(
        (plain.count("\n", 0, found.start()) + 1, found[0], advice)
        for words, advice in words_to_avoid()
        for found in words.finditer(plain)
        if not found[0].isupper()  # a constant
    )


def is_ours(path: Path) -> bool:
    name = named(path)
    return path != WORDS_TO_AVOID and name not in NOT_OURS and not name.startswith(RECORDINGS)


def test_texts_are_plain_english() -> None:
    found = []
    for path in filter(is_ours, tracked()):
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # not a text
        found += [
            f"{named(path)}:{number}: '{words}': say {advice}"
            for number, words, advice in avoidable(text)
        ]
    assert found == []


def test_the_word_list_finds_phrases_in_sentences_and_test_names() -> None:
    words = [words for words, _ in words_to_avoid()]
    assert len(words) > 10
    rows = [line for line in WORDS_TO_AVOID.read_text().splitlines() if not line.startswith("#")]
    plain = {row.split("|")[0].strip() for row in rows if "(" not in row.split("|")[0]}
    for phrase in plain:
        assert avoidable(f"One is {phrase} the other."), phrase
        assert avoidable(f"def test_one_is_{phrase.replace(' ', '_')}_the_other() -> None:"), phrase
    assert avoidable("after it, next to it, again, in place of it\n") == []


def test_the_changelog_describes_the_present() -> None:
    """A defect that no released version had is no change, and a long list is not read."""
    unreleased = (ROOT / "CHANGELOG.md").read_text().partition("\n## Unreleased\n")[2]
    unreleased = unreleased.partition("\n## ")[0]
    assert 100 < len(unreleased.split()) <= CHANGELOG_WORDS_MAX
    assert "Previously" not in unreleased


def test_names_of_tests_are_short() -> None:
    """A name is read in the output of a run, where a long one breaks the line."""
    names = [
        name
        for path in tracked()
        if path.name.startswith("test_") and path.suffix == ".py"
        for name in NAME_OF_TEST.findall(path.read_text())
    ]
    assert len(names) > 2000
    assert [name for name in names if len(name) > TEST_NAME_LENGTH_MAX] == []


def test_every_directory_at_the_top_is_known() -> None:
    relative = (path.relative_to(ROOT) for path in tracked())
    assert {path.parts[0] for path in relative if len(path.parts) > 1} - TOP_LEVEL == set()


# What only the handler API may do, with the modules that are part of the API or record an append,
# a delivery or an eviction in bytes, which a generic call would slow down.
RESERVED = {
    r"\bkeyspace\.(dirty|hits|misses)\b": {"context", "slot_effects"},
    r"\bdb\.(writable_\w+|stream|stream_at|make_stream)\(": {"context", "tread", "tmread"},
    r"\beffects\.record\(": {"context", "slot_effects"},
    r"\bmark_ready(_at)?\(": {
        "context",
        "appending",
        "effects",
        "stream_effects",
        "lifecycle",
        "treserve",
        "tcomplete",
    },
    r"\b(same_word|next_is|is_word)\([^()]*, \d+\)": set(),
}


def test_handlers_use_the_handler_api() -> None:
    """A handler that finds a stream or counts a change in another way forgets a part of it."""
    wrong = [
        f"{named(path)}: {found[0]}"
        for path in sources(".py", ".pyx", ".pxd")
        if package_of(path) == "commands"
        for pattern, allowed in RESERVED.items()
        if path.stem not in allowed
        for found in re.finditer(pattern, path.read_text())
    ]
    assert wrong == []


RECORDED = re.compile(r'\bchange(?:d|d_databases)?\(\s*\(?b"([A-Z]+)"')
APPLIED = re.compile(r'@effect\(b?"?(\w+)"?')


def test_effects_are_recorded_where_they_are_applied() -> None:
    """Elsewhere, the name is imported from the module that applies the effect."""
    wrong = []
    for path in sources(".py", ".pyx"):
        if package_of(path) == "commands":
            text = path.read_text()
            applied = set(APPLIED.findall(text))
            elsewhere = set(RECORDED.findall(text)) - applied
            wrong += [f"{named(path)}: {name}" for name in sorted(elsewhere)]
    assert wrong == []


def test_events_are_in_the_table() -> None:
    """An unknown event would fail only for subscribers of events."""
    used = {
        name
        for path in sources(".py", ".pyx")
        if package_of(path) in ("commands", "server")
        for name in re.findall(
            r'(?:event=|notify\(|change\([^"]*?, )b"([a-z_-]+)"', path.read_text()
        )
    }
    assert used
    assert used <= {name.decode() for name in EVENT_CLASSES}
    assert b"".join(EVENT_CLASSES.values()).decode().strip(LETTERS) == ""

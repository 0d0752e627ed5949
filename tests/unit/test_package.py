"""The packages that users install: their contents and their metadata."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from tests.pipeline.installing import ROOT, SOURCES, install, run

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = (
    "src",
    "server",
    "storage",
    "commands",
    "pipeline",
    "cdc",
    "client",
    "tools",
    "dashboard",
)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source package, made from a tree that is no repository."""
    folder = tmp_path_factory.mktemp("sdist")
    tree = folder / "tree"
    tree.mkdir()
    for name in (*SOURCES, "MANIFEST.in", "CHANGELOG.md"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True)
        else:
            shutil.copy2(source, tree / name)
    build = "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, folder, cwd=tree)
    (made,) = folder.glob("*.tar.gz")
    return made


def test_the_metadata_is_valid_for_a_package_index(wheel: Path, sdist: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)


def test_a_wheel_serves_with_only_its_requirements(wheel: Path, tmp_path: Path) -> None:
    """No compiler, no tools of the tests, no library of an extra."""
    venv = tmp_path / "venv"
    install(wheel, "", venv)
    done = subprocess.run(
        [venv / "bin" / "python", ROOT / "scripts" / "try_installation.py"],
        cwd=tmp_path,
        env={"PATH": str(venv / "bin")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"in {venv}" in done.stdout
    assert not list(venv.glob("lib/*/site-packages/redis"))


def test_the_source_package_has_all_sources_and_nothing_built(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".pyx", ".pxd", ".pyi", ".typed"):
                assert str(path.relative_to(ROOT)) in names
    assert {name for name in names if Path(name).suffix in (".c", ".so", ".pyc")} == set()
    assert {"LICENSE", "CHANGELOG.md", "setup.py", "pyproject.toml"} <= names


def test_the_source_package_builds_the_same_modules(sdist: Path, tmp_path: Path) -> None:
    """Its folder has no links, which vanish in an archive."""
    run("tar", "--extract", "--file", sdist, "--directory", tmp_path)
    (tree,) = (path for path in tmp_path.iterdir() if path.is_dir())
    program = (
        "import setup as s; print(*s.packages()); print(*(m.name for m in s.compiled_modules()))"
    )
    shown = [
        subprocess.run(
            [sys.executable, "-c", f"import sys; sys.argv[1:] = ['--name']; {program}"],
            cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)},
            capture_output=True, text=True, check=True,
        ).stdout
        for folder in (ROOT, tree)
    ]  # fmt: skip
    assert shown[0] == shown[1]
    assert "millstream.storage.blocks.block" in shown[1]


def test_extras_name_the_imports_of_their_commands() -> None:
    core = {re.split(r"[><=\[; ]", text)[0] for text in PYPROJECT["project"]["dependencies"]}
    assert not core & {"hiredis", "redis", "pyarrow", "prometheus-client"}
    extras = PYPROJECT["project"]["optional-dependencies"]
    from millstream.__main__ import COMMANDS

    assert {entry.extra for entry in COMMANDS.values()} - {""} <= set(extras)


def test_wheels_are_built_for_every_python_that_is_named() -> None:
    built = [name.removesuffix("-*") for name in PYPROJECT["tool"]["cibuildwheel"]["build"]]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PYPROJECT["project"]["classifiers"]))
    assert built == [f"cp{version.replace('.', '')}" for version in named]
    assert {"cp311", "cp312", "cp313", "cp314"} <= set(built)


def test_wheels_are_built_for_every_machine_by_the_workflow() -> None:
    linux = PYPROJECT["tool"]["cibuildwheel"]["linux"]
    assert linux["archs"] == ["x86_64", "aarch64"]
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert re.findall(r"machine: (\w+), runner", workflow) == linux["archs"]
    for machine in linux["archs"]:
        assert linux[f"manylinux-{machine}-image"] == "manylinux_2_28"
        assert linux[f"musllinux-{machine}-image"] == "musllinux_1_2"


# The readme


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    """setup.py without the call that builds."""
    spec = importlib.util.spec_from_loader("millstream_setup", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    source = (ROOT / "setup.py").read_text().partition("\nsetup(")[0]
    exec(compile(source, "setup.py", "exec"), module.__dict__)
    return module


def test_the_readme_of_the_package_has_no_relative_link(setup: ModuleType) -> None:
    text = (ROOT / "README.md").read_text()
    for repository in ("", "https://host.example/it"):
        targets = [
            found[3] for found in setup.LINK.finditer(setup.published_readme(text, repository))
        ]
        assert targets
        assert [target for target in targets if not re.match(r"https?:|#", target)] == []


def test_links_of_the_readme_lead_to_the_repository(setup: ModuleType) -> None:
    text = "[a b](docs/a.md#x) ![c](docs/c.svg) [d](https://d.example) [e](#e)"
    assert setup.published_readme(text, "https://host.example/it") == (
        "[a b](https://host.example/it/blob/main/docs/a.md#x) "
        "![c](https://host.example/it/raw/main/docs/c.svg) [d](https://d.example) [e](#e)"
    )
    assert setup.published_readme(text, "") == "a b  [d](https://d.example) [e](#e)"

"""The documentation as a site, and the files for the host of the repository."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BIN = Path(sys.prefix) / "bin"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [ROOT / ".github" / "ISSUE_TEMPLATE" / name for name in ("bug.yml", "feature.yml")]
# What a reader's browser loads with a page. A link is only followed by the reader.
LOADED = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|href)=\"?((?:https?:)?//)")


def configuration() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Every warning, such as a link that leads nowhere, is an error."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy2(ROOT / "mkdocs.yml", folder)
    done = subprocess.run(
        [BIN / "zensical", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def pages_of(navigation: Any) -> list[str]:
    """The pages of a part of the navigation."""
    if isinstance(navigation, str):
        return [navigation]
    parts = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for part in parts for page in pages_of(part)]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = pages_of(configuration()["nav"])
    assert len(set(listed)) == len(listed)
    assert set(listed) == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}


def test_the_site_has_every_page_and_loads_no_foreign_content(site: Path) -> None:
    built = list(site.rglob("*.html"))
    assert len(built) >= len(list(DOCS.rglob("*.md")))
    assert (site / "index.html").exists()
    foreign = [page.name for page in built if LOADED.search(page.read_text())]
    assert foreign == []


def check_schema(schema: str, *files: Path) -> None:
    done = subprocess.run(
        [BIN / "check-jsonschema", "--builtin-schema", schema, *files],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_workflows_are_valid() -> None:
    assert len(WORKFLOWS) >= 2
    check_schema("vendor.github-workflows", *WORKFLOWS)


def test_issue_forms_are_valid() -> None:
    check_schema("vendor.github-issue-forms", *FORMS)


def test_the_compose_file_is_valid_and_mounts_existing_files() -> None:
    file = ROOT / "deploy" / "compose.yml"
    check_schema("vendor.compose-spec", file)
    services = yaml.safe_load(file.read_text())["services"]
    mounted = [volume.split(":")[0] for one in services.values() for volume in one["volumes"]]
    paths = [path for path in mounted if path.startswith(".")]
    assert len(paths) >= 5
    assert [path for path in paths if not (file.parent / path).exists()] == []
    (port,) = re.findall(
        r"^metrics-port (\d+)$", (file.parent / "container.conf").read_text(), re.M
    )
    scraped = yaml.safe_load((file.parent / "compose" / "prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"millstream:{port}"]}]
    server = services["millstream"]
    assert (server["read_only"], server["cap_drop"]) == (True, ["ALL"])
    assert server["security_opt"] == ["no-new-privileges:true"]


def test_the_compose_files_of_clusters_start_what_exists(tmp_path: Path) -> None:
    """Their command lines are those of programs with valid directives, and ports are published."""
    files = [ROOT / "deploy" / f"compose-{name}.yml" for name in ("shards", "members")]
    check_schema("vendor.compose-spec", *files)
    shards, members = (yaml.safe_load(file.read_text())["services"] for file in files)
    (node,) = shards.values()
    settings = str(ROOT / "deploy" / "container.conf")
    words = [*node["entrypoint"], *node["command"]]
    words[words.index("/etc/millstream/millstream.conf")] = settings
    count = int(words[words.index("--shards") + 1])
    assert node["ports"] == [f"127.0.0.1:6455-{6455 + count}:6455-{6455 + count}"]
    lines = [words, *(
        ["millstream", "serve", "--config", settings, *one["command"]]
        for name, one in members.items() if name.startswith("member")
    )]  # fmt: skip
    assert len(lines) == 4
    for line in lines:
        checked = [BIN / line[0], *line[1:], "--dir", str(tmp_path), "--check"]
        done = subprocess.run(checked, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for one in (node, members["member1"], members["member2"], members["member3"]):
        assert (one["read_only"], one["cap_drop"]) == (True, ["ALL"])
    unit = (ROOT / "deploy" / "millstream-gateway.service").read_text()
    (line,) = re.findall(r"^ExecStart=/opt/millstream/bin/millstream gateway (.*)$", unit, re.M)
    for program, words in (
        *((one["entrypoint"], one["command"]) for one in (members["init"], members["gateway"])),
        (members["gateway"]["entrypoint"], line.split()),
    ):
        options = dict(zip(words[::2], words[1::2], strict=True))
        text = subprocess.run(
            [BIN / program[0], *program[1:], "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert [option for option in options if option not in text] == []


def test_the_workflows_run_existing_commands() -> None:
    text = "\n".join(path.read_text() for path in WORKFLOWS)
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make (\w+)", text)) <= targets
    for path in re.findall(r"(?<!\S)((?:tests|scripts|\.ci)/[\w./]+)", text):
        assert (ROOT / path).exists(), path

"""Huge pages are requested once, and only if the system provides them on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.server.monitor import huge_pages


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    started: list[dict[str, str]] = []
    monkeypatch.setattr(huge_pages, "start_again", started.append)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    return started


def setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    file = tmp_path / "enabled"
    file.write_text(text)
    monkeypatch.setattr(huge_pages, "SETTING", str(file))


@pytest.mark.parametrize(
    ("text", "disabled", "times"),
    [
        ("always [madvise] never\n", False, 1),
        ("always [madvise] never\n", True, 0),
        ("[always] madvise never\n", False, 0),
        ("always madvise [never]\n", False, 0),
        ("", False, 0),
    ],
)
def test_the_program_restarts_only_where_huge_pages_are_optional(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    starts: list[dict[str, str]],
    text: str,
    disabled: bool,
    times: int,
) -> None:
    setting(monkeypatch, tmp_path, text)
    huge_pages.prepare(disabled)
    assert len(starts) == times


@pytest.mark.parametrize(
    ("arguments", "times"),
    [
        ([], 1),
        (["--port", "7000", "--dir", "data"], 1),
        (["--disable-thp", "yes"], 0),
        (["--TLS-port=7001"], 0),
        (["--include", "more.conf"], 0),
        (["--config", "server.conf"], 0),
        (["--check"], 0),
        (["--help"], 0),
    ],
)
def test_it_starts_again_early_only_if_no_argument_may_forbid_it(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    starts: list[dict[str, str]],
    arguments: list[str],
    times: int,
) -> None:
    setting(monkeypatch, tmp_path, "always [madvise] never\n")
    huge_pages.prepare_early(arguments)
    assert len(starts) == times


def test_it_starts_again_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, starts: list[dict[str, str]]
) -> None:
    setting(monkeypatch, tmp_path, "always [madvise] never\n")
    huge_pages.prepare(False)
    monkeypatch.setenv("GLIBC_TUNABLES", starts[0]["GLIBC_TUNABLES"])
    huge_pages.prepare(False)
    assert len(starts) == 1


def test_the_users_allocator_settings_are_kept() -> None:
    assert huge_pages.asking({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}) is None
    environment = huge_pages.asking({"GLIBC_TUNABLES": "glibc.malloc.check=1", "A": "b"})
    assert environment == {
        "GLIBC_TUNABLES": f"{huge_pages.TUNABLES}:glibc.malloc.check=1",
        "A": "b",
    }


def test_a_size_given_by_the_user_comes_last_and_takes_effect() -> None:
    given = "glibc.malloc.trim_threshold=1"
    environment = huge_pages.asking({"GLIBC_TUNABLES": given})
    assert environment is not None
    assert environment["GLIBC_TUNABLES"].endswith(f":{given}")


def test_a_system_without_the_setting_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huge_pages, "SETTING", str(tmp_path / "missing"))
    assert huge_pages.system_setting() == "never"

"""`millstream users init`, and files that keep their owner and permissions."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from millstream.commands.access.users import Users
from millstream.errors import StartError
from millstream.server.config.directives import Config
from millstream.server.config.file_replacement import replace_file
from millstream.server.config.user_files import configured_users
from millstream.server.users_cli import users


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_first_file_has_an_administrator_alone(tmp_path: Path) -> None:
    file = tmp_path / "users.acl"
    config = Config(dir=tmp_path, aclfile="users.acl")
    with pytest.raises(StartError, match=r"Create it: `millstream users init FILE` .* an empty"):
        configured_users(config, Users())
    done = CliRunner().invoke(users, ["init", str(file)])
    assert done.exit_code == 0
    assert mode_of(file) == 0o600
    password = done.stdout.strip().splitlines()[-1].encode()
    assert len(password) >= 32
    assert password not in file.read_bytes()
    found = {user.name: user for user in configured_users(config, Users())}
    assert found.keys() == {b"default", b"admin"}
    assert not found[b"default"].enabled
    assert found[b"admin"].accepts(password)
    assert found[b"admin"].is_unrestricted
    before = file.read_bytes()
    again = CliRunner().invoke(users, ["init", str(file)])
    assert again.exit_code == 1
    assert "exists and was not changed" in again.output
    assert file.read_bytes() == before


def test_a_given_password_is_not_printed(tmp_path: Path) -> None:
    file = tmp_path / "users.acl"
    words = ["init", str(file), "--admin", "ops", "--password-file", "-"]
    done = CliRunner().invoke(users, words, input="hunter2\n")
    assert done.exit_code == 0
    assert "hunter2" not in done.output
    config = Config(dir=tmp_path, aclfile=str(file))
    (_, admin) = configured_users(config, Users())
    assert (admin.name, admin.accepts(b"hunter2")) == (b"ops", True)
    bad = CliRunner().invoke(users, ["init", str(tmp_path / "x"), "--admin", "default"])
    assert bad.exit_code == 1
    assert not (tmp_path / "x").exists()


def test_a_replaced_file_keeps_owner_and_permissions(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    replace_file(file, b"new")
    assert mode_of(file) == 0o600
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 1234, 5678)
    before = file.stat()
    replace_file(file, b"changed")
    after = file.stat()
    assert file.read_bytes() == b"changed"
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode, before.st_uid, before.st_gid,
    )  # fmt: skip


def test_another_group_gets_no_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.conf"
    file.write_bytes(b"old")
    file.chmod(0o640)

    def refuse(*_: object) -> None:
        raise PermissionError

    old = os.stat_result([*file.stat()[:5], 5678, *file.stat()[6:]])
    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(Path, "stat", lambda path: old)
    replace_file(file, b"new")
    monkeypatch.undo()
    assert mode_of(file) == 0o600

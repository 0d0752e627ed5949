"""Users in files: the aclfile, and `user` lines of the configuration file."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

import pytest

from millstream.commands.access.users import Users, changed_user
from millstream.commands.table.loader import load_table
from millstream.errors import CommandError, StartError
from millstream.server.config.config_rewrite import rewrite_file
from millstream.server.config.directives import Config
from millstream.server.config.loading import load
from millstream.server.config.user_files import (
    configured_users,
    read_users,
    user_words,
    users_of_lines,
    with_default,
    write_users,
)

load_table()
# As Redis 7.0 and 8.6 write it.
WRITTEN_BY_REDIS = b"""\
user alice on sanitize-payload #5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8 \
~app:* resetchannels &news -@all +@stream +config|get (~x resetchannels -@all +get)
user default on nopass sanitize-payload ~* &* +@all

"""


def test_a_file_is_read_and_written_the_same(tmp_path: Path) -> None:
    file = tmp_path / "users.acl"
    file.write_bytes(BOM_UTF8 + WRITTEN_BY_REDIS)  # the mark of an editor is skipped
    users = Users()
    users.replace(read_users(file, users))
    assert [user.name for user in users] == [b"alice", b"default"]
    write_users(file, users)
    assert file.read_bytes() == WRITTEN_BY_REDIS.rstrip(b"\n") + b"\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["users.acl"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("use bob", "{}:2 should start with user keyword followed by the username."),
        ("user", "{}:2 should start with user keyword followed by the username."),
        ("user bob +nothing", "{}:2: Error in applying operation '+nothing': Unknown command or"),
        ("user bob on >secret nonsense", "{}:2: Error in applying operation 3: Syntax error."),
        ("user bob ~* ~a", "{}:2: Error in applying operation '~a': Adding a pattern after"),
        ("user bob %X~a", "{}:2: Error in applying operation '%X~a': Syntax error."),
        ("user bob #secret", "{}:2: Error in applying operation 1: The password hash must be"),
        ("user bob (~a", "{}:2: Unmatched parenthesis in selector definition."),
        ("user alice on", "{}:2: Duplicate user 'alice' found."),
    ],
)
def test_an_error_names_the_line(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "users.acl"
    file.write_text(f"user alice on\n{line}\nuser carl +other\n")
    with pytest.raises(CommandError) as caught:
        read_users(file, Users())
    error = caught.value.message
    assert error.startswith("ERR " + message.format(file))
    assert f"{file}:3: Error in applying operation '+other'" in error
    assert error.endswith("no change to the previously active ACL rules was performed")
    assert "secret" not in error


def test_lines_with_comments_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "users.acl"
    file.write_text("# who may do what\nuser alice on +get\n\n  # the next one\nuser bob on\n#")
    assert [user.name for user in read_users(file, Users())] == [b"alice", b"bob"]


def test_an_error_at_start_does_not_speak_of_earlier_rules(tmp_path: Path) -> None:
    file = tmp_path / "users.acl"
    file.write_text("user bob +nothing\n")
    with pytest.raises(StartError) as caught:
        configured_users(Config(aclfile=str(file)), Users())
    assert str(caught.value).endswith("Unknown command or category name in ACL.")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"opening file .* No such file"):
        read_users(tmp_path / "none", Users())


def test_without_a_line_for_default_its_password_stays(tmp_path: Path) -> None:
    found = with_default([Users().new(b"u")], "secret")
    assert found[-1].name == b"default"
    assert found[-1].accepts(b"secret")
    assert not found[-1].accepts(b"")


def test_lines_of_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "mill.conf"
    file.write_text('port 7000\nuser bob on >"two words" ~a* +@read (~b\nuser carl\n')
    config = load(file, [])
    with pytest.raises(StartError, match=r"mill.conf, line 2: Unmatched parenthesis"):
        users_of_lines(config.user_lines, Users())
    file.write_text('port 7000\nuser bob on ">two words" "~a\\x22" +@read (~b +get)\n')
    (bob,) = users_of_lines(load(file, []).user_lines, Users())
    assert bob.accepts(b"two words")
    assert bob.root.keys_text() == b'~a"'
    file.write_text("user bob on\nuser bob off\n")
    with pytest.raises(StartError, match=r"line 2: Duplicate user 'bob' found"):
        users_of_lines(load(file, []).user_lines, Users())


def test_rewriting_keeps_users(tmp_path: Path) -> None:
    file = tmp_path / "mill.conf"
    file.write_text("# users\nuser old on\nport 7000\nuser older on\n")
    users = Users()
    users.add(changed_user(users.new(b"bob"), [b"on", b">pw", b'~a"b', b"(~c +get)"]))
    config = load(file, [])
    rewrite_file(file, config, user_words(users, ""))
    text = file.read_text()
    assert text.startswith("# users\nuser bob on sanitize-payload #")
    assert "old" not in text
    again = Users()
    again.replace(users_of_lines(load(file, []).user_lines, again))
    assert [user.line() for user in again] == [user.line() for user in users]


def test_plain_default_needs_no_line(tmp_path: Path) -> None:
    users = Users()
    assert user_words(users, "") == []
    users.set_default_password(b"secret")
    assert user_words(users, "secret") == []
    assert user_words(users, "") != []


def test_renamed_commands_are_refused_with_a_rule(tmp_path: Path) -> None:
    file = tmp_path / "mill.conf"
    file.write_text('rename-command FLUSHALL ""\n')
    with pytest.raises(StartError, match=r"line 1: rename-command is not supported.*-flushall"):
        load(file, [])


def test_users_of_an_included_file_are_not_written_twice(tmp_path: Path) -> None:
    """A user may be defined only once, so the rewritten file would prevent the next start."""
    file, other = tmp_path / "millstream.conf", tmp_path / "users.conf"
    other.write_text("user ann on nopass\n")
    file.write_text(f"include {other}\n")
    config = load(file, [])
    with pytest.raises(ValueError, match=r"in an included file \(.*users.conf, line 1\)"):
        rewrite_file(file, config, [])
    assert file.read_text() == f"include {other}\n"

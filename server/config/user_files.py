"""Users in files: the aclfile, and lines `user NAME RULE ...` of the configuration file.

Nothing of a file with an error is applied. The error names each line and what is wrong with it.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable
from pathlib import Path

from millstream.commands.access.users import (
    DEFAULT_USER,
    RuleError,
    UnknownNameError,
    User,
    Users,
    has_spaces,
    merged_rules,
)
from millstream.errors import CommandError, StartError
from millstream.server.config.directives import Config
from millstream.server.config.file_replacement import replace_file
from millstream.server.config.lines import Line

UNCHANGED = (
    "WARNING: ACL errors detected, no change to the previously active ACL rules was performed"
)
HOLD_NO_SECRET = (b"+", b"-", b"~", b"%", b"&")  # how rules that may be shown begin


def read_users(path: Path, users: Users) -> list[User]:
    """The users of an aclfile; `users` makes them. CommandError with a sentence for each error."""
    try:
        data = path.read_bytes().removeprefix(BOM_UTF8)
    except OSError as problem:
        raise CommandError(
            f"ERR Error loading ACLs, opening file '{path}': {problem.strerror}"
        ) from None
    return users_in(data, str(path), users)


def users_in(data: bytes, where: str, users: Users) -> list[User]:
    """The users in the lines of an aclfile. CommandError, with a sentence for each error, whose
    place begins with `where`."""
    found: dict[bytes, User] = {}
    errors: list[str] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        words = line.strip().split(b" ")
        if words[0] and not words[0].startswith(b"#"):
            errors += _add_user(found, words, users, f"{where}:{number}")
    if errors:
        raise CommandError("ERR " + " ".join([*errors, UNCHANGED]))
    return list(found.values())


def _add_user(found: dict[bytes, User], words: list[bytes], users: Users, where: str) -> list[str]:
    """Add the user of a line; what is wrong with the line."""
    if words[0] != b"user" or len(words) < 2:
        return [f"{where} should start with user keyword followed by the username."]
    name = words[1]
    shown = name.decode("utf-8", "surrogateescape")
    if has_spaces(name):
        return [f"{where}: username '{shown}' contains invalid characters."]
    if name in found:
        return [f"{where}: Duplicate user '{shown}' found."]
    found[name] = user = users.new(name)
    try:
        rules = merged_rules(words[2:])
    except RuleError:
        return [f"{where}: Unmatched parenthesis in selector definition."]
    return _errors_of(user, rules, where)


def _errors_of(user: User, rules: Iterable[bytes], where: str) -> list[str]:
    """Apply rules; the errors. A rule that may hold a password is not repeated in its error."""
    errors: list[str] = []
    for number, rule in enumerate(rules, start=1):
        try:
            user.apply(rule)
        except RuleError as problem:
            if isinstance(problem, UnknownNameError) or rule[:1] in HOLD_NO_SECRET:
                shown = rule.decode("utf-8", "surrogateescape")
                errors.append(f"{where}: Error in applying operation '{shown}': {problem}.")
            else:
                errors.append(f"{where}: Error in applying operation {number}: {problem}.")
    return errors


def users_of_lines(lines: Iterable[Line], users: Users) -> list[User]:
    """The users of a configuration file. StartError names the line and the rule."""
    found: dict[bytes, User] = {}
    for where, _, words in lines:
        if not words:
            raise StartError(f"{where}: user: takes a name and rules")
        encoded = [word.encode("utf-8", "surrogateescape") for word in words]
        errors = _add_user(found, [b"user", *encoded], users, where)
        if errors:
            raise StartError(" ".join(errors))
    return list(found.values())


def configured_users(config: Config, users: Users) -> list[User]:
    """The users of the aclfile or of the configuration file; `users` makes them. StartError when
    one is wrong."""
    if not config.aclfile:
        return users_of_lines(config.user_lines, users)
    if config.user_lines:
        raise StartError(
            f"{config.user_lines[0].where}: define users in the aclfile or in `user` lines, not "
            "in both"
        )
    try:
        return read_users(Path(config.located(config.aclfile)), users)
    except CommandError as problem:
        sentence = problem.message.removeprefix("ERR ").removesuffix(UNCHANGED).rstrip()
        path = config.located(config.aclfile)
        if not Path(path).exists():
            sentence += (
                ". Create it: `millstream users init FILE` writes one with an administrator; an "
                "empty file means the user default without a password"
            )
        raise StartError(sentence) from None


def write_users(path: Path, users: Iterable[User]) -> None:
    """Replace an aclfile atomically; OSError when that fails. Only its owner may read it."""
    replace_file(path, text_of(users), mode=0o600)


def text_of(users: Iterable[User]) -> bytes:
    """The lines of an aclfile."""
    return b"".join(user.line() + b"\n" for user in users)


def user_words(users: Users, password: str) -> list[list[bytes]]:
    """The words of the `user` lines that a configuration file needs; none while there is only
    `default`, as requirepass makes it."""
    plain = Users()
    plain.set_default_password(password.encode("utf-8", "surrogateescape"))
    lines = [user.line() for user in users]
    return [] if lines == [plain.default.line()] else [line.split(b" ") for line in lines]


def with_default(loaded: list[User], password: str) -> list[User]:
    """The users of a file, and `default` with the password of requirepass where the file has no
    such user."""
    if any(user.name == DEFAULT_USER for user in loaded):
        return loaded
    fresh = Users()
    fresh.set_default_password(password.encode("utf-8", "surrogateescape"))
    return [*loaded, fresh.default]

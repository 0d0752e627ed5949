"""Users: what their rules allow, and the rules as text. No input or output.

A user has a root selector, and perhaps more. A request is allowed if one of the selectors allows
the command, all its keys and all its channels. Rules, errors and descriptions are those of
Redis.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millstream.commands.access.absent import is_absent_category, is_absent_command
from millstream.commands.access.catalog import (
    CatalogEntry,
    all_entries,
    find_entry,
    in_category,
)
from millstream.commands.table.categories import CATEGORIES
from millstream.errors import CommandError
from millstream.glob import PATTERN_MAX_BYTES, TOO_LONG, is_literal
from millstream.quoted_words import quoted, split_words

DEFAULT_USER = b"default"
READ, WRITE = 1, 2  # what a key pattern allows, and what a command does with a key
_HASH = rb"[0-9a-f]{64}"
_UNSAFE = rb"[\"']|\)\Z"
_SPACES = rb"[\s\0]"

UNKNOWN_NAME = "Unknown command or category name in ACL"
SYNTAX = "Syntax error"
AFTER_ALL_KEYS = (
    "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have "
    "any effect. Try 'resetkeys' to start with an empty list of patterns"
)
AFTER_ALL_CHANNELS = (
    "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not "
    "have any effect. Try 'resetchannels' to start with an empty list of channels"
)
NO_SUCH_PASSWORD = "The password you are trying to remove from the user does not exist"
BAD_HASH = (
    "The password hash must be exactly 64 characters and contain only lowercase hexadecimal "
    "characters"
)
ARGUMENT_OF_SUBCOMMAND = "Allowing first-arg of a subcommand is not supported"


class RuleError(ValueError):
    """A rule that cannot be applied; the text is Redis'."""


class UnknownNameError(RuleError):
    """A rule with a command or category that does not exist. It holds no secret, so it may be
    shown."""


class KeyPattern(NamedTuple):
    """Keys that match `pattern` may be used as `use` says: READ, WRITE or both."""

    pattern: bytes
    use: int

    def describe(self) -> bytes:
        sign = {READ: b"%R~", WRITE: b"%W~", READ | WRITE: b"~"}[self.use]
        if self == (b"*", READ | WRITE):  # ~* is allkeys, after which there may be no pattern
            sign = b"%RW~"
        return sign + self.pattern


def has_spaces(text: bytes) -> bool:
    """True if a name or pattern has spaces, so that it could not be written to a file and read
    back."""
    return re.search(_SPACES, text) is not None


def password_hash(password: bytes) -> bytes:
    from hashlib import sha256

    return sha256(password).hexdigest().encode()


class Selector:
    """The permissions that one list of rules gives."""

    def __init__(self, *, all_channels: bool) -> None:
        self.allowed: set[str] = set()
        self.first_arguments: dict[str, list[bytes]] = {}
        self.command_rules: list[str] = []  # in order, without the +@all or -@all before them
        self.begins_with_all = False
        self.all_keys = False
        self.keys: dict[bytes, int] = {}
        self.all_channels = all_channels
        self.channels: dict[bytes, None] = {}

    def copy(self) -> Selector:
        made = Selector(all_channels=self.all_channels)
        made.allowed = set(self.allowed)
        made.first_arguments = {name: list(words) for name, words in self.first_arguments.items()}
        made.command_rules = list(self.command_rules)
        made.begins_with_all = self.begins_with_all
        made.all_keys = self.all_keys
        made.keys = dict(self.keys)
        made.channels = dict(self.channels)
        return made

    @property
    def all_commands(self) -> bool:
        return self.begins_with_all and all_entries().keys() <= self.allowed

    @property
    def allows_everything(self) -> bool:
        return self.all_keys and self.all_channels and self.all_commands

    @property
    def patterns(self) -> list[KeyPattern]:
        return [KeyPattern(pattern, use) for pattern, use in self.keys.items()]

    # Rules

    def apply(self, rule: bytes) -> None:
        """Apply one rule; RuleError when it is invalid."""
        word = rule.lower()
        if word in (b"allkeys", b"~*"):
            self.all_keys = True
            self.keys = {}
        elif word == b"resetkeys":
            self.all_keys = False
            self.keys = {}
        elif word in (b"allchannels", b"&*"):
            self.all_channels = True
            self.channels = {}
        elif word == b"resetchannels":
            self.all_channels = False
            self.channels = {}
        elif word in (b"allcommands", b"+@all"):
            self._restart(begins_with_all=True)
        elif word in (b"nocommands", b"-@all"):
            self._restart(begins_with_all=False)
        else:
            self._apply_named(rule)

    def _restart(self, *, begins_with_all: bool) -> None:
        self.begins_with_all = begins_with_all
        self.allowed = set(all_entries()) if begins_with_all else set()
        self.command_rules = []
        self.first_arguments = {}

    def _apply_named(self, rule: bytes) -> None:
        if rule[:1] in (b"~", b"%"):
            self._add_keys(rule)
        elif rule[:1] == b"&":
            self._add_channel(rule[1:])
        elif rule[:2] in (b"+@", b"-@"):
            self._change_category(_name(rule[2:]), allow=rule[:1] == b"+")
        elif rule[:1] == b"+":
            self._allow(rule[1:])
        elif rule[:1] == b"-":
            known = find_entry(_name(rule[1:]))
            if known is not None:
                self._change(known.with_children(), allow=False)
            elif not is_absent_command(_name(rule[1:])):
                raise UnknownNameError(UNKNOWN_NAME)
            self._note(f"-{_name(rule[1:])}")
        else:
            raise RuleError(SYNTAX)

    def _add_keys(self, rule: bytes) -> None:
        if self.all_keys:
            raise RuleError(AFTER_ALL_KEYS)
        letters, tilde, pattern = rule.partition(b"~")
        use = READ | WRITE
        if letters:
            signs = letters[1:].upper()
            use = READ * (b"R" in signs) + WRITE * (b"W" in signs)
            if not tilde or signs not in (b"R", b"W", b"RW", b"WR"):
                raise RuleError(SYNTAX)
        _check_pattern(pattern)
        self.keys[pattern] = self.keys.get(pattern, 0) | use

    def _add_channel(self, pattern: bytes) -> None:
        if self.all_channels:
            raise RuleError(AFTER_ALL_CHANNELS)
        _check_pattern(pattern)
        self.channels[pattern] = None

    def _change_category(self, category: str, *, allow: bool) -> None:
        if category not in CATEGORIES and not is_absent_category(category):
            raise UnknownNameError(UNKNOWN_NAME)
        for entry in in_category(category):
            self._change(entry.with_subcommands(), allow=allow)
        self._note(f"{'+' if allow else '-'}@{category}")

    def _allow(self, text: bytes) -> None:
        command, _, argument = text.rpartition(b"|")
        name = _name(text)
        known, entry = find_entry(name), find_entry(_name(command))
        if known is not None:
            self._change(known.with_children(), allow=True)
        elif entry is not None and not (entry.is_container and is_absent_command(name)):
            self._allow_argument(entry, argument.lower())
        elif not is_absent_command(name):
            raise UnknownNameError(UNKNOWN_NAME)
        self._note(f"+{name}")

    def _allow_argument(self, entry: CatalogEntry, argument: bytes) -> None:
        if entry.is_child:
            raise RuleError(ARGUMENT_OF_SUBCOMMAND)
        if not argument:
            raise RuleError(SYNTAX)
        if entry.is_container:
            raise UnknownNameError(UNKNOWN_NAME)
        arguments = self.first_arguments.setdefault(entry.name, [])
        if argument not in arguments:
            arguments.append(argument)

    def _change(self, entries: Iterable[CatalogEntry], *, allow: bool) -> None:
        for entry in entries:
            (self.allowed.add if allow else self.allowed.discard)(entry.name)
            self.first_arguments.pop(entry.name, None)

    def _note(self, rule: str) -> None:
        """Add a rule, and remove the earlier ones that it covers."""
        name = rule[1:]
        self.command_rules = [
            earlier
            for earlier in self.command_rules
            if earlier[1:] != name and not earlier[1:].startswith(f"{name}|")
        ]
        self.command_rules.append(rule)

    # Descriptions

    def commands_text(self) -> bytes:
        first = "+@all" if self.begins_with_all else "-@all"
        return _bytes(" ".join([first, *self.command_rules]))

    def keys_text(self) -> bytes:
        if self.all_keys:
            return b"~*"
        return b" ".join(pattern.describe() for pattern in self.patterns)

    def channels_text(self) -> bytes:
        if self.all_channels:
            return b"&*"
        return b" ".join(b"&" + pattern for pattern in self.channels)

    def describe(self) -> bytes:
        """The rules of this selector, in one line."""
        reset = [] if self.all_channels else [b"resetchannels"]
        parts = [self.keys_text(), *reset, self.channels_text(), self.commands_text()]
        return b" ".join(part for part in parts if part)


class User:
    """One user. Rules change it in place, because clients refer to it."""

    def __init__(self, name: bytes, *, all_channels: bool) -> None:
        self.name = name
        self.enabled = False
        self.no_password = False
        self.sanitizes = True  # stored and shown; payloads are always checked
        self.passwords: dict[bytes, None] = {}
        self.selectors = [Selector(all_channels=all_channels)]
        self._all_channels = all_channels

    @property
    def root(self) -> Selector:
        return self.selectors[0]

    @property
    def is_unrestricted(self) -> bool:
        return any(selector.allows_everything for selector in self.selectors)

    def copy(self) -> User:
        made = User(self.name, all_channels=self._all_channels)
        made.take_over(self)
        return made

    def take_over(self, other: User) -> None:
        """Copy everything except the name from another user."""
        self.enabled = other.enabled
        self.no_password = other.no_password
        self.sanitizes = other.sanitizes
        self.passwords = dict(other.passwords)
        self.selectors = [selector.copy() for selector in other.selectors]

    def accepts(self, password: bytes) -> bool:
        """True if a client may log in with this password. The time does not depend on how many of
        its characters are right."""
        if not self.enabled:
            return False
        if self.no_password:
            return True
        from hmac import compare_digest

        given = password_hash(password)
        return sum(compare_digest(given, known) for known in self.passwords) > 0

    # Rules

    def apply(self, rule: bytes) -> None:
        """Apply one rule, which may be a selector in parentheses; RuleError when it is invalid."""
        word = rule.lower()
        if not word or word in _USER_RULES:
            self._apply_word(word)
        elif word[:1] in (b">", b"#", b"<", b"!"):
            self._change_password(rule)
        elif rule[:1] == b"(" and rule[-1:] == b")":
            self._add_selector(rule[1:-1])
        else:
            self.root.apply(rule)

    def _apply_word(self, word: bytes) -> None:
        if word in (b"on", b"off"):
            self.enabled = word == b"on"
        elif word in (b"nopass", b"resetpass"):
            self.no_password = word == b"nopass"
            self.passwords = {}
        elif word in (b"sanitize-payload", b"skip-sanitize-payload"):
            self.sanitizes = word == b"sanitize-payload"
        elif word == b"clearselectors":
            del self.selectors[1:]
        elif word == b"reset":
            self.take_over(User(self.name, all_channels=self._all_channels))

    def _change_password(self, rule: bytes) -> None:
        sign, text = rule[:1], rule[1:]
        if sign in (b"#", b"!") and re.fullmatch(_HASH, text) is None:
            raise RuleError(BAD_HASH)
        hashed = text if sign in (b"#", b"!") else password_hash(text)
        if sign in (b">", b"#"):
            self.passwords[hashed] = None
            self.no_password = False
        elif hashed in self.passwords:
            del self.passwords[hashed]
        else:
            raise RuleError(NO_SUCH_PASSWORD)

    def _add_selector(self, text: bytes) -> None:
        selector = Selector(all_channels=self._all_channels)
        try:
            rules = split_words(text)
        except ValueError:
            raise RuleError(SYNTAX) from None
        for rule in rules:
            selector.apply(rule)
        self.selectors.append(selector)

    # Descriptions

    def flags(self) -> list[bytes]:
        found = [b"on" if self.enabled else b"off"]
        if self.no_password:
            found.append(b"nopass")
        return [*found, b"sanitize-payload" if self.sanitizes else b"skip-sanitize-payload"]

    def describe(self) -> bytes:
        """The rules of this user. Applied to a new user, they make an equal user."""
        hashes = [b"#" + password for password in self.passwords]
        root, *others = [selector.describe() for selector in self.selectors]
        return b" ".join([*self.flags(), *hashes, root, *map(_in_parentheses, others)])

    def line(self) -> bytes:
        """The user as a line of a file."""
        return b"user %b %b" % (self.name, self.describe())


_USER_RULES = frozenset(
    {
        b"on", b"off", b"nopass", b"resetpass", b"sanitize-payload", b"skip-sanitize-payload",
        b"clearselectors", b"reset",
    }
)  # fmt: skip


def _in_parentheses(rules: bytes) -> bytes:
    """A selector as one rule. A word with quotes, or one that would end the selector, is quoted."""
    words = rules.split(b" ")
    return b"(%b)" % b" ".join(_bytes(quoted(w)) if re.search(_UNSAFE, w) else w for w in words)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _name(word: bytes) -> str:
    return word.decode("utf-8", "surrogateescape").lower()


def _check_pattern(pattern: bytes) -> None:
    if has_spaces(pattern):
        raise RuleError(SYNTAX)
    if len(pattern) > PATTERN_MAX_BYTES and not is_literal(pattern):
        raise RuleError(TOO_LONG.removeprefix("ERR "))


def merged_rules(words: Iterable[bytes]) -> list[bytes]:
    """Rules with each selector as one word, although it may span several. RuleError with the word
    at which a selector begins that does not end."""
    merged: list[bytes] = []
    open_words: list[bytes] = []
    for word in words:
        if not open_words and not (word[:1] == b"(" and word[-1:] != b")"):
            merged.append(word)
            continue
        open_words.append(word)
        if len(open_words) > 1 and word[-1:] == b")":
            merged.append(b" ".join(open_words))
            open_words = []
    if open_words:
        raise RuleError(open_words[0].decode("utf-8", "surrogateescape"))
    return merged


class Users:
    """All users. `default` always exists. Users are listed in the order of their names."""

    def __init__(self, *, all_channels: bool = False) -> None:
        self.all_channels = all_channels  # acl-pubsub-default, for users made from now on
        self.default = default_user()
        self._users = {DEFAULT_USER: self.default}

    def get(self, name: bytes) -> User | None:
        return self._users.get(name)

    def __iter__(self) -> Iterator[User]:
        return iter(sorted(self._users.values(), key=lambda user: user.name))

    def new(self, name: bytes) -> User:
        """A user that is not listed yet."""
        return User(name, all_channels=self.all_channels)

    def add(self, user: User) -> None:
        self._users[user.name] = user

    def put(self, user: User) -> None:
        """Add this user, or give the one with this name these rules."""
        known = self._users.setdefault(user.name, user)
        if known is not user:
            known.take_over(user)

    def remove(self, name: bytes) -> User | None:
        return self._users.pop(name, None)

    def replace(self, users: Iterable[User]) -> None:
        """Replace all users; `default` stays the same object."""
        loaded = {user.name: user for user in users}
        if DEFAULT_USER in loaded:
            self.default.take_over(loaded[DEFAULT_USER])
        self._users = {**loaded, DEFAULT_USER: self.default}

    def set_default_password(self, password: bytes) -> None:
        """requirepass: the only password of `default`; empty: none is required."""
        self.default.apply(b"resetpass")
        self.default.apply(b">" + password if password else b"nopass")


def default_user() -> User:
    """The initial user `default`, who may do everything without a password."""
    user = User(DEFAULT_USER, all_channels=False)
    for rule in (b"+@all", b"~*", b"&*", b"on", b"nopass"):
        user.apply(rule)
    return user


def changed_user(user: User, rules: Iterable[bytes]) -> User:
    """A copy with the rules applied. CommandError in Redis' words when one of them cannot be."""
    changed = user.copy()
    try:
        merged = merged_rules(rules)
    except RuleError as problem:
        raise CommandError(
            f"ERR Unmatched parenthesis in acl selector starting at '{problem}'."
        ) from None
    for rule in merged:
        try:
            changed.apply(rule)
        except RuleError as problem:
            shown = rule.decode("utf-8", "surrogateescape")
            raise CommandError(f"ERR Error in ACL SETUSER modifier '{shown}': {problem}") from None
    return changed

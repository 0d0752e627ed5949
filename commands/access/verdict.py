"""Verdicts: a user may run a request, or lacks a permission.

This is the complete definition. `permission` has the fast check that allows most requests of
restricted users; all other requests are decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from millstream.commands.access.catalog import find_entry
from millstream.commands.access.users import READ, WRITE, Selector, User
from millstream.commands.table.keyspecs import has_option, keys_with_flags
from millstream.commands.table.registry import Command
from millstream.errors import CommandError, shown
from millstream.glob import matcher

# The words of a request that are channels, by the trait of its command.
CHANNELS = {"channel": slice(1, 2), "channels": slice(1, None), "patterns": slice(1, None)}
USE_OF_FLAG = {"access": READ, "insert": WRITE, "delete": WRITE, "update": WRITE}

COMMAND, KEY, CHANNEL, AUTH = "command", "key", "channel", "auth"
_ORDER = {COMMAND: 1, KEY: 2, CHANNEL: 3}  # the last missing permission is reported
_REASONS_AT_EXEC = {
    COMMAND: "no permission to execute the command or subcommand",
    KEY: "no permission to touch the specified keys",
    CHANNEL: "no permission to access one of the channels used as arguments to the command",
}


class Denial(NamedTuple):
    """A missing permission: `reason` is COMMAND, KEY or CHANNEL, `subject` the command's name, the
    key or the channel."""

    reason: str
    subject: bytes
    user: bytes

    def error(self) -> CommandError:
        """The error for the client, without the name of the key or channel."""
        sentence = self._sentence() or f"No permissions to access a {self.reason}"
        return CommandError(f"NOPERM {sentence}")

    def detailed(self) -> str:
        """The text for an administrator (ACL DRYRUN)."""
        return self._sentence() or (
            f"User {shown(self.user)} has no permissions to access the '{shown(self.subject)}' "
            f"{self.reason}"
        )

    def error_at_exec(self) -> CommandError:
        return CommandError(
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the "
            "EXEC call. This command is no longer allowed for the following reason: "
            + _REASONS_AT_EXEC[self.reason]
        )

    def error_in_script(self) -> CommandError:
        message = self.error().message.removeprefix("NOPERM ")
        return CommandError(f"NOPERM ACL failure in script: {message}")

    def _sentence(self) -> str:
        if self.reason != COMMAND:
            return ""
        return (
            f"User {shown(self.user)} has no permissions to run the '{shown(self.subject)}' command"
        )


def name_of(row: Command, words: list[bytes]) -> str:
    """The name that rules use for a request: ``tread|group`` for TREAD with GROUP."""
    option = row.writes_with
    if option is not None and has_option(words, option):
        return f"{row.name}|{option.decode().lower()}"
    return row.name


def keys_of(row: Command, words: list[bytes]) -> list[tuple[bytes, int]]:
    """The keys of a request and their use. When the words are wrong, the command is refused anyway,
    and only the keys before the fault are found."""
    found: list[tuple[bytes, list[str]]] = []
    with suppress(CommandError, IndexError, ValueError):
        found.extend(keys_with_flags(row.key_specs, words))
    return [(key, use_of(flags)) for key, flags in found]


def use_of(flags: Iterable[str]) -> int:
    use = 0
    for flag in flags:
        use |= USE_OF_FLAG.get(flag, 0)
    return use


def denial(user: User, row: Command, words: list[bytes]) -> Denial | None:
    """None if one of the user's selectors allows the request."""
    found = Denial(COMMAND, name_of(row, words).encode(), user.name)
    last = 0
    for selector in user.selectors:
        lacking = _lacking(selector, row, words)
        if lacking is None:
            return None
        reason, at, subject = lacking
        rank = _ORDER[reason], at
        if rank > (_ORDER[found.reason], last):
            found, last = Denial(reason, subject, user.name), at
    return found


def _lacking(selector: Selector, row: Command, words: list[bytes]) -> tuple[str, int, bytes] | None:
    """The first permission that the selector does not give: (reason, position, key or channel or
    command); None if it allows the request."""
    name = name_of(row, words)
    if "no_auth" not in row.flags and not allows_command(selector, name, words):
        return COMMAND, 0, name.encode()
    for at, (key, use) in enumerate(keys_of(row, words), start=1):
        if not allows_key(selector, key, use):
            return KEY, at, key
    for trait in row.traits & CHANNELS.keys():
        for at, channel in enumerate(words[CHANNELS[trait]], start=1):
            if not allows_channel(selector, channel, is_pattern=trait == "patterns"):
                return CHANNEL, at, channel
    return None


def allows_command(selector: Selector, name: str, words: list[bytes]) -> bool:
    """True if the selector allows a command. `words` has the first argument, for rules that allow
    the command only with this argument."""
    if name in selector.allowed or _unlisted_parent(name) in selector.allowed:
        return True
    return len(words) > 1 and words[1].lower() in selector.first_arguments.get(name, ())


def _unlisted_parent(name: str) -> str:
    """The container of a subcommand that rules cannot name, since it only answers an error."""
    return "" if find_entry(name) is not None else name.partition("|")[0]


def allows_key(selector: Selector, key: bytes, use: int) -> bool:
    if selector.all_keys:
        return True
    return any(
        pattern.use & use == use and matcher(pattern.pattern)(key) for pattern in selector.patterns
    )


def allows_channel(selector: Selector, channel: bytes, *, is_pattern: bool) -> bool:
    """A pattern to subscribe to is allowed only by the same pattern."""
    if selector.all_channels:
        return True
    if is_pattern:
        return channel in selector.channels
    return any(matcher(pattern)(channel) for pattern in selector.channels)


def denial_of_wait(user: User, name: str, keys: Iterable[bytes], use: int) -> Denial | None:
    """The missing permission for a blocked read, after a change of rules; None if it may continue.
    A command that is allowed only with certain arguments may continue."""
    found = Denial(COMMAND, name.encode(), user.name)
    for selector in user.selectors:
        if name not in selector.allowed and name not in selector.first_arguments:
            continue
        lacking = [key for key in keys if not allows_key(selector, key, use)]
        if not lacking:
            return None
        found = Denial(KEY, lacking[0], user.name)
    return found


def may_hear(user: User, channels: Iterable[bytes], patterns: Iterable[bytes]) -> bool:
    """True if all of these subscriptions are allowed."""
    return all(
        any(allows_channel(selector, name, is_pattern=is_pattern) for selector in user.selectors)
        for names, is_pattern in ((channels, False), (patterns, True))
        for name in names
    )

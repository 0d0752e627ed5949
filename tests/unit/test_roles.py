"""The roles of docs/security.md can do no harm. Real programs show that they can do their work."""

from __future__ import annotations

import pytest
from tests.support.roles import ROLES, harm, rules

from millstream.commands.access.users import User, Users, changed_user
from millstream.commands.access.verdict import denial
from millstream.commands.table.introspection import find
from millstream.commands.table.loader import load_table
from millstream.commands.table.registry import COMMANDS

load_table()


def user_of(role: str) -> User:
    return changed_user(Users().new(b"u"), [rule.encode() for rule in rules(role)])


def is_allowed(user: User, line: str) -> bool:
    words = line.encode().split()
    row = find(words[0])
    assert row is not None, line
    if row.subcommands:
        row = COMMANDS[words[0].lower()].subcommands[words[1].lower()]
    return denial(user, row, words) is None


@pytest.mark.parametrize("role", ROLES)
def test_a_role_does_no_harm(role: str) -> None:
    user = user_of(role)
    assert [line for line in harm(role) if is_allowed(user, line)] == []
    if "~*" not in ROLES[role]:
        elsewhere = ["GET other", "XRANGE other - +", "TREAD other 0 1"]
        assert [line for line in elsewhere if is_allowed(user, line)] == []
    for rule in rules(role):  # a name that no command has would be kept, and mean nothing
        name = rule[1:]
        assert rule[:1] != "+" or name[:1] == "@" or row_of(name) is not None, rule


def row_of(name: str) -> object:
    command, _, subcommand = name.partition("|")
    row = find(command.encode())
    return row.subcommands.get(subcommand.encode()) if row and subcommand else row

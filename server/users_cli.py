"""`millstream users init`: a first file of users for the directive aclfile."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TextIO

import click

from millstream.commands.access.users import DEFAULT_USER, Users, changed_user, has_spaces

PASSWORD_BYTES = 24


@click.group()
def users() -> None:
    """Create a file of users."""


@users.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--admin", default="admin", show_default=True, help="Name of the administrator.")
@click.option(
    "--password-file",
    type=click.File("r"),
    help="File with the password, - for standard input [default: a random one, which is printed].",
)
def init(file: Path, admin: str, password_file: TextIO | None) -> None:
    """Write FILE for the directive aclfile: an administrator, and the user `default` off.

    FILE must not exist. Only its owner can read it. It has the password as SHA-256.
    """
    name = admin.encode()
    if not name or has_spaces(name) or name == DEFAULT_USER:
        raise click.ClickException("--admin: the name is empty, has spaces or is `default`")
    given = None if password_file is None else password_file.read().rstrip("\r\n")
    if given == "":
        raise click.ClickException("the password is empty")
    password = given or secrets.token_urlsafe(PASSWORD_BYTES)
    _create(file, _lines(name, password.encode()))
    click.echo(f"{file} has the user {admin}, who may do everything; default is off", err=True)
    if given is None:
        click.echo(f"the password of {admin}, shown only now:", err=True)
        click.echo(password)
    if os.geteuid() == 0:
        click.echo(f"give it to the user who runs the server: chown USER {file}", err=True)


def _lines(name: bytes, password: bytes) -> bytes:
    """The two users of the file."""
    from millstream.commands.table.loader import load_table

    load_table()
    known = Users()
    default = changed_user(known.new(DEFAULT_USER), [b"off"])
    rules = [b"on", b">" + password, b"~*", b"&*", b"+@all"]
    admin = changed_user(known.new(name), rules)
    return default.line() + b"\n" + admin.line() + b"\n"


def _create(file: Path, text: bytes) -> None:
    """Write a new file; a file that exists stays as it is."""
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise click.ClickException(f"{file} exists and was not changed") from None
    except OSError as problem:
        raise click.ClickException(f"cannot create {file}: {problem.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as problem:
        file.unlink(missing_ok=True)
        raise click.ClickException(f"cannot write {file}: {problem.strerror}") from None

"""Requests without their secrets.

The slow log and MONITOR hide as much as Redis does. The log of administrators' commands shows the
rules and directives that were changed, and hides each word that may be a password. This includes
requests with mistakes: a word is shown only if it is known to be something else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

REDACTED = b"(redacted)"
# The directives of kind SECRET (server/config/kinds); masteruser is hidden by Redis, too.
SECRET_DIRECTIVES = frozenset(
    {b"requirepass", b"masterauth", b"tls-key-file-pass", b"tls-client-key-file-pass"}
)
_HIDDEN_DIRECTIVES = SECRET_DIRECTIVES | {b"masteruser"}
# Subcommands with names of users and passwords, of which Redis hides both, or with a secret.
_HIDDEN = frozenset(
    {(b"acl", b"setuser"), (b"acl", b"deluser"), (b"acl", b"getuser"), (b"cluster", b"peer")}
)
_GETKEYS = frozenset({(b"command", b"getkeys"), (b"command", b"getkeysandflags")})
# Rules of users without a password: the words, and how the others begin.
_PLAIN_RULES = frozenset(
    {
        b"on", b"off", b"nopass", b"resetpass", b"sanitize-payload", b"skip-sanitize-payload",
        b"clearselectors", b"reset", b"allkeys", b"resetkeys", b"allchannels", b"resetchannels",
        b"allcommands", b"nocommands",
    }
)  # fmt: skip
_PLAIN_BEGINNINGS = (b"+", b"-", b"~", b"%", b"&")
_PASSWORD_BEGINNINGS = (b">", b"<", b"#", b"!")


def without_secrets(words: Sequence[bytes]) -> list[bytes]:
    """The words of a request with passwords replaced, as in Redis' SLOWLOG and MONITOR, and also in
    a request that names another one, and in HELLO with a missing or misspelled word."""
    shown = list(words)
    name = shown[0].lower()
    if name == b"auth":
        shown[1:] = [REDACTED] * (len(shown) - 1)
    elif name == b"hello":
        _hide_credentials(shown)
    elif len(shown) > 2 and (name, shown[1].lower()) in _HIDDEN:
        shown[2:] = [REDACTED] * (len(shown) - 2)
    elif len(shown) > 3 and (name, shown[1].lower()) == (b"acl", b"dryrun"):
        shown[3:] = without_secrets(shown[3:])
    elif len(shown) > 2 and (name, shown[1].lower()) in _GETKEYS:
        shown[2:] = without_secrets(shown[2:])
    elif name == b"config" and len(shown) > 3 and shown[1].lower() == b"set":
        for at in range(2, len(shown) - 1, 2):
            if shown[at].lower() in _HIDDEN_DIRECTIVES:
                shown[at + 1] = REDACTED
    return shown


def _hide_credentials(hello: list[bytes]) -> None:
    """Replace name and password of HELLO. What follows an unknown word may be both."""
    at = 2 if len(hello) > 1 and hello[1].isdigit() else 1
    while at < len(hello):
        option = hello[at].lower()
        if option == b"auth":
            hello[at + 1 : at + 3] = [REDACTED] * len(hello[at + 1 : at + 3])
            at += 3
        elif option == b"setname":
            has_name = hello[at + 1 : at + 2] and hello[at + 1].lower() != b"auth"
            at += 2 if has_name else 1
        else:
            first = at if REDACTED in hello else at + 1
            hello[first:] = [REDACTED] * len(hello[first:])
            break


def described(words: Sequence[bytes], directives: Collection[bytes]) -> list[bytes]:
    """The words of an administrator's command with passwords replaced. `directives` are the names
    of all directives: the value of an unknown one is hidden."""
    name = words[0].lower()
    sub = words[1].lower() if len(words) > 1 else b""
    if name == b"acl" and sub == b"setuser":
        return [*words[:2], *map(_without_password, words[2:3]), *map(_shown_rule, words[3:])]
    if name == b"config" and sub == b"set":
        return [*words[:2], *_shown_pairs(words[2:], directives)]
    return list(words)


def _without_password(name: bytes) -> bytes:
    """A name of a user, unless it looks like a rule with a password."""
    return name[:1] + REDACTED if name[:1] in _PASSWORD_BEGINNINGS else name


def _shown_rule(rule: bytes) -> bytes:
    if rule[:1] in _PASSWORD_BEGINNINGS:
        return rule[:1] + REDACTED
    return rule if all(map(_is_plain, rule.lstrip(b"(").rstrip(b")").split(b" "))) else REDACTED


def _is_plain(rule: bytes) -> bool:
    return not rule or rule[:1] in _PLAIN_BEGINNINGS or rule.lower() in _PLAIN_RULES


def _shown_pairs(words: Sequence[bytes], directives: Collection[bytes]) -> Iterator[bytes]:
    """Names and values of CONFIG SET. If a value is missing, names and values have changed places:
    what follows the name of a secret is hidden in any case."""
    previous = b""
    for at, word in enumerate(words):
        name = previous if at % 2 else word.lower()
        yield word if name in directives and previous not in _HIDDEN_DIRECTIVES else REDACTED
        previous = word.lower()

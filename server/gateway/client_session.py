"""The address, name, protocol and user of a client of the gateway. Each connection to a node gets
them."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.server.protocol.resp import encode_reply

RESP3 = b"3"


class ClientSession:
    """The requests that make a new connection to a node like the others of the client. HELLO is
    kept by its parts: a later one without AUTH or without a version changes only the rest."""

    def __init__(self) -> None:
        self.is_resp3 = False
        self.address = ""  # of the client, with its port
        self._auth: list[bytes] = []
        self._hello: list[bytes] = []
        self._others: dict[bytes, list[bytes]] = {}

    def clear(self) -> None:
        self.is_resp3 = False
        self._auth, self._hello = [], []
        self._others.clear()

    def note(self, name: str, words: Sequence[bytes]) -> None:
        """The nodes have accepted this request."""
        if name == "auth":
            self._auth = list(words)
        elif name == "hello":
            self._note_hello(words[1:])
        else:
            # CLIENT SETINFO has two attributes.
            attribute = words[2].lower() if name == "client|setinfo" else b""
            self._others[name.encode() + attribute] = list(words)

    def _note_hello(self, options: Sequence[bytes]) -> None:
        if not options:
            return
        self._hello = [b"HELLO", options[0]]
        self.is_resp3 = options[0] == RESP3
        at = 1
        while at < len(options):
            if options[at].upper() == b"AUTH":
                self._auth = [b"AUTH", *options[at + 1 : at + 3]]
                at += 3
            else:
                self._others[b"client|setname"] = [b"CLIENT", b"SETNAME", options[at + 1]]
                at += 2

    def requests(self) -> list[bytes]:
        """In the order in which a node takes them: the user first."""
        said = [self._auth, self._hello, *self._others.values()]
        return [encode_reply(words) for words in said if words]

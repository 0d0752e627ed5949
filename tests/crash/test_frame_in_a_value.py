"""A value may contain any bytes, even those of a journal, without an effect on the next start.

A server is killed after it has written the value, and the end of its journal is cut, as after a
crash. A start that treated the bytes in the value as later frames would refuse the journal as
damaged.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.data_directory import cut_end, last_journal
from tests.support.journals import FORMAT, journal_bytes
from tests.support.server import Server

from millstream.storage.files.journal_format import OLD_FORMAT, FrameFormat


def frame_of_format_1(server: Server) -> bytes:
    return OLD_FORMAT.encode(0, 1000, 0, b"*1\r\n$3\r\nXYZ\r\n")


def frame_of_another_file(server: Server) -> bytes:
    return FORMAT.encode(0, 1000, 0, b"*1\r\n$3\r\nXYZ\r\n")


def whole_journal_of_another_file(server: Server) -> bytes:
    return journal_bytes([b"x" * 50] * 40, first_seq=3)


def own_journal(server: Server) -> bytes:
    return last_journal(server.directory).read_bytes()


def own_journal_of_a_copy_that_went_on(server: Server) -> bytes:
    """Frames with later numbers and this very file's salt, though at other places."""
    data = own_journal(server)
    form = FrameFormat(data[48:56])
    return data + b"".join(form.encode(len(data), seq, 0, b"y" * 30) for seq in range(5, 40))


VALUES = [
    frame_of_format_1,
    frame_of_another_file,
    whole_journal_of_another_file,
    own_journal,
    own_journal_of_a_copy_that_went_on,
]


@pytest.mark.parametrize("mode", ["always", "everysec"])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.__name__)
def test_a_value_that_contains_frames_does_not_prevent_a_start(
    new_server: Callable[..., Server], value: Callable[[Server], bytes], mode: str
) -> None:
    server = new_server("data", {"appendfsync": mode}).start()
    with server.client() as client:
        for number in (1, 2, 3):
            client.call("XADD", "s", f"{number}-1", "f", "v")
        client.call("XADD", "s", "4-1", "f", value(server) + b"z" * 40)  # the cut takes of these
    server.kill()
    cut_end(last_journal(server.directory), 10)
    server.start()
    with server.client() as client:
        assert client.call("XLEN", "s") == 3
        client.call("XADD", "s", "5-1", "f", "v")
    server.restart("SIGKILL")
    with server.client() as client:
        assert client.call("XLEN", "s") == 4

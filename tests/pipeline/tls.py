"""A server with TLS: a proxy with its own certificate, like stunnel."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def tls_in_front_of(port: int, directory: Path) -> Iterator[tuple[int, Path]]:
    """The proxy's port, and the certificate to trust; made for `localhost`."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    request = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject)
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run([*request, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        listening = asyncio.run_coroutine_threadsafe(_listen(port, context), loop).result(10)
        yield listening.sockets[0].getsockname()[1], certificate
        asyncio.run_coroutine_threadsafe(_end(listening), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _listen(port: int, context: ssl.SSLContext) -> asyncio.Server:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pour(reader, forth), _pour(back, writer))

    return await asyncio.start_server(carry, "127.0.0.1", 0, ssl=context)


async def _end(listening: asyncio.Server) -> None:
    """End its connections too: a handshake that has just failed would otherwise be reported when
    the interpreter ends."""
    listening.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()

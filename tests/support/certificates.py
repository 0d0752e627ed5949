"""Certificates for tests, made with the openssl program: an authority, servers, clients."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


class Authority:
    """A certificate authority in a folder. `file` is its certificate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self.file = folder / f"{name}.crt"
        self.key = folder / f"{name}.key"
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-days", "2", "-keyout", str(self.key)),
            *("-out", str(self.file)),
        )

    def issue(self, name: str, days: int = 2, password: str = "") -> tuple[Path, Path]:
        """A certificate with this common name, for 127.0.0.1, and its key."""
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        protection = ["-passout", f"pass:{password}"] if password else ["-nodes"]
        openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", *protection),
            *("-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request)),
        )
        openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.file), "-CAkey", str(self.key)),
            *("-CAcreateserial", "-days", str(days), "-extfile", str(extensions)),
            *("-out", str(certificate)),
        )
        return certificate, key

    def directives(self, name: str = "server") -> dict[str, str]:
        """The directives of a server with a certificate of this authority."""
        certificate, key = self.issue(name)
        return {
            "tls-cert-file": str(certificate),
            "tls-key-file": str(key),
            "tls-ca-cert-file": str(self.file),
        }

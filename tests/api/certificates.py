"""Certificates of an authority that only the tests know."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import attrs
import trustme


@attrs.frozen
class Files:
    """A certificate for this machine with its key, and the authority that a client must trust."""

    certificate: str
    key: str
    authority: trustme.CA

    @property
    def settings(self) -> dict[str, Any]:
        return {"tls_certificate": self.certificate, "tls_key": self.key}


@cache
def authority() -> trustme.CA:
    """One for all tests: making keys takes a while."""
    return trustme.CA()


def certificate_files(folder: Path, name: str = "server") -> Files:
    """Write a new certificate and its key into a folder."""
    issued = authority().issue_cert("localhost", "127.0.0.1")
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return Files(str(certificate), str(key), authority())

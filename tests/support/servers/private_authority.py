"""Certificates of a private authority, which no client trusts by default."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1")


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate for 127.0.0.1, and of the authority that signed it."""

    file: Path
    key: Path
    authority: Path


def make_certificate(folder: Path) -> Certificate:
    """Create an authority, and a certificate for 127.0.0.1 that it signs."""
    authority, authority_key = folder / "ca.crt", folder / "ca.key"
    _make("authority", authority, authority_key)
    file, key = folder / "server.crt", folder / "server.key"
    signed = ["-CA", str(authority), "-CAkey", str(authority_key)]
    extensions = ["subjectAltName=IP:127.0.0.1", "basicConstraints=critical,CA:FALSE"]
    added = [part for extension in extensions for part in ("-addext", extension)]
    _make("server", file, key, *signed, *added)
    return Certificate(file, key, authority)


def _make(name: str, file: Path, key: Path, *options: str) -> None:
    files = ["-keyout", str(key), "-out", str(file)]
    command = ["openssl", "req", "-x509", *NEW_KEY, "-subj", f"/CN={name}", *files, *options]
    subprocess.run(command, check=True, capture_output=True)

"""Authorities that all clients of this process trust: the system's and those of `spec.caBundle`."""

import atexit
import os
import shutil
import ssl
import tempfile
from pathlib import Path

from raggrpo_api import names
from raggrpo_api.trainer.staging import StagingReason

from .failures import StagingFailed, detail

VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE")
"""Variables from which the clients read the file of the authorities, as the only ones."""


def trust_authorities() -> None:
    """Set VARIABLES to a file of all authorities, if the environment names some.

    Raises StagingFailed if one of the files cannot be read.
    """
    specified = [os.environ.get(names.ENV_CA_BUNDLE), os.environ.get("SSL_CERT_FILE")]
    files = [each for each in specified if each]
    if not files:
        return
    if not os.environ.get("SSL_CERT_FILE") and (system := ssl.get_default_verify_paths().cafile):
        files.append(system)
    folder = Path(tempfile.mkdtemp(prefix="raggrpo-authorities-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    bundle = folder / "ca.pem"
    bundle.write_text("\n".join(_certificates(Path(each)) for each in files))
    for name in VARIABLES:
        os.environ[name] = str(bundle)


def _certificates(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise StagingFailed(
            StagingReason.TLS_FAILURE,
            f"{file} with trusted authorities cannot be read ({detail(error)}); correct "
            f"{names.ENV_CA_BUNDLE} or SSL_CERT_FILE",
        ) from error

"""The configuration as environment variables with an integrity check.

Ray expands `$NAME` in the variables of a submission, and the kubelet expands `$(NAME)` in the
variables of a container. Base64 contains no `$`, and the hash detects any other change.
"""

import base64
import hashlib
from collections.abc import Mapping

from raggrpo_api.names import ENV_CONFIG, ENV_CONFIG_SHA256

REMEDY = (
    "start the job with the operator or `raggrpo run job.yaml`, which set "
    f"{ENV_CONFIG} and {ENV_CONFIG_SHA256}, and use a trainer image of the same version"
)


class BrokenSeal(ValueError):
    """Raised if the environment contains no configuration or a modified configuration."""


def seal(text: str) -> dict[str, str]:
    """Return the environment variables that contain a configuration's JSON and its hash."""
    raw = text.encode()
    return {
        ENV_CONFIG: base64.b64encode(raw).decode(),
        ENV_CONFIG_SHA256: hashlib.sha256(raw).hexdigest(),
    }


def open_sealed(environ: Mapping[str, str]) -> str:
    """Return the configuration's JSON. Raises BrokenSeal if the JSON is missing or was modified."""
    for name in (ENV_CONFIG, ENV_CONFIG_SHA256):
        if not environ.get(name):
            raise BrokenSeal(f"{name} is not set: {REMEDY}")
    try:
        raw = base64.b64decode(environ[ENV_CONFIG], validate=True)
    except ValueError as error:
        raise BrokenSeal(f"{ENV_CONFIG} is not base64: {REMEDY}") from error
    if hashlib.sha256(raw).hexdigest() != environ[ENV_CONFIG_SHA256]:
        raise BrokenSeal(
            f"{ENV_CONFIG} was modified ({ENV_CONFIG_SHA256} does not match): {REMEDY}"
        )
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BrokenSeal(f"{ENV_CONFIG} is not UTF-8: {REMEDY}") from error

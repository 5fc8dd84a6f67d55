"""The configuration as environment variables that nothing on the way can alter unnoticed.

Ray expands `$NAME` in a submission's variables, the kubelet `$(NAME)` in a container's. Base64 has
no `$`, and the hash reveals any other change.
"""

import base64
import hashlib
from collections.abc import Mapping

from raggrpo_api.names import ENV_CONFIG, ENV_CONFIG_SHA256

REMEDY = (
    "the operator and `raggrpo run job.yaml` set both variables; start the job through one of "
    "them, with the image that belongs to its version"
)


class BrokenSeal(ValueError):
    """The environment holds no configuration, or another one than was sealed."""


def seal(text: str) -> dict[str, str]:
    """Return the variables that carry a configuration's JSON."""
    given = text.encode()
    return {
        ENV_CONFIG: base64.b64encode(given).decode(),
        ENV_CONFIG_SHA256: hashlib.sha256(given).hexdigest(),
    }


def open_sealed(environ: Mapping[str, str]) -> str:
    """Return the JSON that was sealed, byte by byte; raises BrokenSeal."""
    for name in (ENV_CONFIG, ENV_CONFIG_SHA256):
        if not environ.get(name):
            raise BrokenSeal(f"{name} is not set: {REMEDY}")
    try:
        given = base64.b64decode(environ[ENV_CONFIG], validate=True)
    except ValueError as error:
        raise BrokenSeal(f"{ENV_CONFIG} is not base64: {REMEDY}") from error
    if hashlib.sha256(given).hexdigest() != environ[ENV_CONFIG_SHA256]:
        raise BrokenSeal(
            f"{ENV_CONFIG} was changed on the way, {ENV_CONFIG_SHA256} is not its hash: {REMEDY}"
        )
    return given.decode()

"""Log in to an OCI registry as Docker does, with Basic credentials or tokens (distribution)."""

import requests
from oras.auth.utils import parse_auth_header

from raggrpo_api.trainer.staging import StagingReason

from .failures import StagingFailed, status_failure
from .redirects import origin, resolves_to_link_local, server_of
from .retries import retry_after


def authorization(
    session: requests.Session, response: requests.Response, credentials: str
) -> str | None:
    """Return the header Authorization for a registry, or None if it does not grant access.

    `response` is the registry's own, with its challenge; `credentials` are for Basic, or empty. As
    with Docker, credentials are also sent to the server that the challenge names for tokens. Raises
    StagingFailed.
    """
    challenge = response.headers.get("Www-Authenticate", "")
    kind = challenge.partition(" ")[0].lower()
    if kind == "basic":
        return f"Basic {credentials}" if credentials else None
    if kind != "bearer":
        return None
    fields = parse_auth_header(challenge)
    _require_realm(response.url, fields.realm or "")
    scope = {"service": fields.service, "scope": fields.scope}
    answer = session.get(
        fields.realm,
        params={name: value for name, value in scope.items() if value},
        headers={"Authorization": f"Basic {credentials}"} if credentials else {},
    )
    if answer.status_code == 429 or answer.status_code >= 500:
        wait = retry_after(answer.headers)
        raise status_failure(server_of(answer.url), answer.status_code, wait)
    if answer.status_code != 200:
        return None
    return f"Bearer {_token(answer)}"


def _require_realm(url: str, realm: str) -> None:
    """Raise StagingFailed unless the credentials of the registry may be sent to a realm."""
    try:
        scheme, host, _ = origin(realm)
    except ValueError:
        scheme = host = ""
    registry_scheme, registry_host, _ = origin(url)
    if scheme not in ("http", "https") or not host:
        problem = "requests a login without a valid realm"
    elif registry_scheme == "https" != scheme:
        problem = f"requests a login at {host}, which is not https"
    elif host != registry_host and resolves_to_link_local(host):
        problem = f"requests a login at {host}, a link-local address or metadata service"
    else:
        return
    raise StagingFailed(
        StagingReason.UNSUITABLE_CONTENT,
        f"{server_of(url)} {problem}; check the address of the registry",
    )


def _token(answer: requests.Response) -> str:
    try:
        value = answer.json()
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        token = value.get("token") or value.get("access_token")
        if isinstance(token, str) and token.isascii() and token.isprintable():
            return token
    raise StagingFailed(
        StagingReason.UNSUITABLE_CONTENT,
        f"{server_of(answer.url)} answered a login without a token; check the address of the "
        "registry",
    )

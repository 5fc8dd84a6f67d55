"""kopf's connection to the API server; of listed objects it takes only what the caches keep.

kopf holds every object that it has listed until all kinds are listed, and each may have megabytes
that whoever created it chose.
"""

from typing import Any

import aiohttp
import kopf

from raggrpo_operator.kube.client import JOBS

from .kept import CHILDREN, kept

LISTS = frozenset(f"{each.kind}List" for each in (JOBS, *CHILDREN))


class _TrimmedResponse(aiohttp.ClientResponse):
    async def json(self, **options: Any) -> Any:
        found = await super().json(**options)
        if found.get("kind") in LISTS:
            kind = found["kind"].removesuffix("List")
            found["items"] = [kept({"kind": kind, **each}) for each in found["items"]]
        return found


async def connect(**context: Any) -> kopf.AiohttpSession | None:
    """Return a session with the credentials of the pod or, outside a cluster, of a kubeconfig."""
    found = kopf.login_with_service_account(**context) or kopf.login_with_kubeconfig(**context)
    if found is None:
        return None
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=found.as_ssl_context()),
        headers=found.as_http_headers(),
        response_class=_TrimmedResponse,
        proxy=found.proxy_url,
        trust_env=found.trust_env,
    )
    return kopf.AiohttpSession(
        aiohttp_session=session,
        server=found.server,
        default_namespace=found.default_namespace,
        priority=found.priority,
        expiration=found.expiration,
    )

"""`Lease`: which replica works, by a Lease object. Clocks of different machines are not compared.

A leader that cannot renew stops before another one may begin: renewal gives up after
RENEW_SECONDS, which is less than DURATION_SECONDS.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from raggrpo_operator.errors import Conflict, NotFound, OperatorError

from .client import LEASES, KubeClient, Manifest

log = logging.getLogger(__name__)

DURATION_SECONDS = 15
"""How long a Lease that is not renewed keeps others out."""
RENEW_SECONDS = 10.0
"""How long a leader tries to renew."""
RETRY_SECONDS = 2.0


class Lease:
    """The Lease as one replica sees it. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client, self._namespace, self._name = client, namespace, name
        self._identity, self._clock, self._sleep = identity, clock, sleep
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = float("-inf")

    async def acquire(self) -> None:
        """Return as soon as this replica leads."""
        while True:
            try:
                if await self._take():
                    log.info("this replica leads now")
                    return
            except OperatorError as error:
                log.warning("the Lease cannot be read or written: %s", error)
            await self._sleep(RETRY_SECONDS)

    async def keep(self) -> None:
        """Renew; return when this replica leads no longer."""
        renewed = self._clock()
        while True:
            await self._sleep(RETRY_SECONDS)
            left = renewed + RENEW_SECONDS - self._clock()
            try:
                async with asyncio.timeout(max(left, 0.0)):
                    if not await self._take():
                        log.error("another replica leads: %s", self._seen[0])
                        return
                renewed = self._clock()
            except (OperatorError, TimeoutError) as error:
                log.warning("the Lease could not be renewed: %r", error)
                if self._clock() - renewed >= RENEW_SECONDS:
                    log.error("the Lease was not renewed for %.0f s", RENEW_SECONDS)
                    return

    async def release(self) -> None:
        """Let another replica begin at once."""
        lease = await self._client.get(LEASES, self._namespace, self._name)
        if lease["spec"].get("holderIdentity") == self._identity:
            await self._client.apply(self._lease(lease, holder=""))

    async def _take(self) -> bool:
        """Acquire or renew; False while somebody else leads."""
        try:
            lease = await self._client.get(LEASES, self._namespace, self._name)
        except NotFound:
            return await self._succeeds(self._client.create(self._lease(None)))
        spec = lease["spec"]
        holder, renewed = spec.get("holderIdentity", ""), spec.get("renewTime", "")
        if (holder, renewed) != self._seen:
            self._seen, self._seen_at = (holder, renewed), self._clock()
        is_free = not holder or self._clock() >= self._seen_at + DURATION_SECONDS
        if holder != self._identity and not is_free:
            return False
        return await self._succeeds(self._client.apply(self._lease(lease)))

    async def _succeeds(self, write: Awaitable[Manifest]) -> bool:
        try:
            await write
        except Conflict:  # another replica was faster
            return False
        return True

    def _lease(self, old: Manifest | None, holder: str | None = None) -> Manifest:
        holder = self._identity if holder is None else holder
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata = {"name": self._name, "namespace": self._namespace}
        before = {} if old is None else old["spec"]
        changed = before.get("holderIdentity", "") != holder
        if old is not None:
            metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": DURATION_SECONDS,
                "acquireTime": now if changed else before.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": before.get("leaseTransitions", 0) + (1 if changed else 0),
            },
        }

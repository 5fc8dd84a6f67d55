"""`Lease`: leader election with a Lease object. Must not compare clocks of different machines.

A leader that cannot renew for RENEW_SECONDS stops leading before the Lease expires after
DURATION_SECONDS.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from raggrpo_operator.errors import Conflict, NotFound, OperatorError

from .client import LEASES, KubeClient, Manifest

log = logging.getLogger(__name__)

DURATION_SECONDS = 15
"""Time after which another replica may take a Lease that is not renewed."""
RENEW_SECONDS = 10.0
"""Time after which a leader that cannot renew stops leading."""
RETRY_SECONDS = 2.0


class Lease:
    """The Lease as observed by one replica. `clock` returns monotonic seconds."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        duration_seconds: int = DURATION_SECONDS,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._sleep = sleep
        self._duration_seconds = duration_seconds
        self._observed: tuple[str, str] = ("", "")
        self._observed_at = float("-inf")

    @property
    def holder(self) -> str:
        """The identity of the last observed holder, or ""."""
        return self._observed[0]

    async def acquire(self) -> None:
        """Wait until this replica is the leader."""
        while True:
            try:
                if await self.try_acquire():
                    log.info("this replica is now the leader")
                    return
            except OperatorError as error:
                log.warning("leader election: the Lease cannot be read or written: %s", error)
            await self._sleep(RETRY_SECONDS)

    async def renew_until_lost(self) -> None:
        """Renew the Lease; return when this replica is no longer the leader."""
        renewed = self._clock()
        while True:
            await self._sleep(RETRY_SECONDS)
            remaining = renewed + RENEW_SECONDS - self._clock()
            try:
                async with asyncio.timeout(max(remaining, 0.0)):
                    if not await self.try_acquire():
                        log.error("another replica is the leader: %s", self._observed[0])
                        return
                renewed = self._clock()
            except (OperatorError, TimeoutError) as error:
                log.warning("renewing the Lease failed: %r", error)
                if self._clock() - renewed >= RENEW_SECONDS:
                    log.error("the Lease was not renewed for %.0f s", RENEW_SECONDS)
                    return

    async def release(self) -> None:
        """Release the Lease so that another replica can acquire it immediately."""
        lease = await self._client.get(LEASES, self._namespace, self._name)
        if lease["spec"].get("holderIdentity") == self._identity:
            await self._client.apply(self._lease(lease, holder=""))

    async def try_acquire(self) -> bool:
        """Return True if this replica now has the Lease, False if another replica has it."""
        try:
            lease = await self._client.get(LEASES, self._namespace, self._name)
        except NotFound:
            return await self._succeeds(self._client.create(self._lease(None)))
        spec = lease["spec"]
        holder = spec.get("holderIdentity", "")
        renewed = spec.get("renewTime", "")
        if (holder, renewed) != self._observed:
            self._observed = (holder, renewed)
            self._observed_at = self._clock()
        is_free = not holder or self._clock() >= self._observed_at + self._duration_seconds
        if holder != self._identity and not is_free:
            return False
        return await self._succeeds(self._client.apply(self._lease(lease)))

    async def _succeeds(self, write: Awaitable[Manifest]) -> bool:
        try:
            await write
        except Conflict:  # another replica wrote first
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
                "leaseDurationSeconds": self._duration_seconds,
                "acquireTime": now if changed else before.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": before.get("leaseTransitions", 0) + (1 if changed else 0),
            },
        }

"""`NamespaceClaims`: only one operator installation reconciles the jobs of a namespace.

Each namespace with jobs has a Lease that its operator renews. An operator that finds the Lease of
another installation backs off until that Lease expires. Replicas of one installation share a claim.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

from raggrpo_api import names
from raggrpo_operator.errors import AccessDenied, OperatorError
from raggrpo_operator.kube.client import KubeClient
from raggrpo_operator.kube.lease import Lease

log = logging.getLogger(__name__)

DURATION_SECONDS = 120
"""Time after which another operator may claim a namespace whose Lease is not renewed."""
RENEW_SECONDS = 40.0
MAX_AGE_SECONDS = 100.0
"""Time after which an operator that cannot renew stops reconciling the jobs of a namespace."""
RETRY_SECONDS = 20.0
"""Time after which an operator checks the claim of another one again."""


class NamespaceClaims:
    """Claims by namespace. `identity` names the installation; `clock` returns monotonic seconds."""

    def __init__(
        self,
        client: KubeClient,
        identity: str,
        clock: Callable[[], float],
        on_rejected: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._client, self._identity, self._clock = client, identity, clock
        self._on_rejected = on_rejected
        self._leases: dict[str, Lease] = {}
        self._renewed: dict[str, float] = {}
        self._rejected: dict[str, float] = {}
        self._unchecked: set[str] = set()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def holder(self, namespace: str) -> str:
        """Claim the namespace; return the other installation that holds it, or "".

        Raises:
            OperatorError: The Lease cannot be read or written.

        """
        async with self._locks[namespace]:
            now, never = self._clock(), float("-inf")
            if now < self._renewed.get(namespace, never) + RENEW_SECONDS:
                return ""
            if now < self._rejected.get(namespace, never) + RETRY_SECONDS:
                return self._lease(namespace).holder
            return await self._renew(namespace)

    async def run(self) -> None:
        """Renew all claims, also those of namespaces without running jobs."""
        while True:
            await asyncio.sleep(RENEW_SECONDS / 2)
            for namespace in list(self._renewed):
                with suppress(OperatorError):  # reported by the next round
                    await self.holder(namespace)

    async def release(self) -> None:
        """Release all claims, so that another installation can take over at once."""
        for namespace in list(self._renewed):
            with suppress(OperatorError):  # the Lease expires anyway
                await self._leases[namespace].release()

    async def _renew(self, namespace: str) -> str:
        lease = self._lease(namespace)
        try:
            is_held = await lease.try_acquire()
        except AccessDenied as error:
            self._report_unchecked(namespace, error)
            is_held = True
        except OperatorError:
            if self._clock() < self._renewed.get(namespace, float("-inf")) + MAX_AGE_SECONDS:
                return ""
            raise
        if is_held:
            self._renewed[namespace] = self._clock()
            self._rejected.pop(namespace, None)
        else:
            self._record_rejection(namespace, lease.holder)
        self._on_rejected(len(self._rejected))
        return "" if is_held else lease.holder

    def _record_rejection(self, namespace: str, holder: str) -> None:
        self._renewed.pop(namespace, None)
        if namespace not in self._rejected:
            log.error(
                "operator %s reconciles the jobs of namespace %s; this one (%s) does not: "
                "uninstall one of them, or set its watchNamespaces",
                holder,
                namespace,
                self._identity,
            )
        self._rejected[namespace] = self._clock()

    def _report_unchecked(self, namespace: str, error: AccessDenied) -> None:
        if namespace not in self._unchecked:
            log.warning("another operator in %s would not be detected: %s", namespace, error)
        self._unchecked.add(namespace)

    def _lease(self, namespace: str) -> Lease:
        if namespace not in self._leases:
            self._leases[namespace] = Lease(
                self._client,
                namespace,
                names.NAMESPACE_LEASE,
                self._identity,
                clock=self._clock,
                duration_seconds=DURATION_SECONDS,
            )
        return self._leases[namespace]

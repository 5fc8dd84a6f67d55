from dataclasses import dataclass, field

import pytest

from raggrpo_api import names
from raggrpo_operator.errors import AccessDenied, TransientError
from raggrpo_operator.kubernetes_runtime.rounds.namespace_claims import (
    DURATION_SECONDS,
    MAX_AGE_SECONDS,
    RENEW_SECONDS,
    RETRY_SECONDS,
    NamespaceClaims,
)
from support.fakes.fake_kube import FakeKube, failing


@dataclass
class ClaimsSetup:
    kube: FakeKube = field(default_factory=FakeKube)
    now: float = 1000.0
    rejected: list[int] = field(default_factory=list)

    def claims(self, identity: str) -> NamespaceClaims:
        return NamespaceClaims(self.kube, identity, lambda: self.now, self.rejected.append)

    @property
    def writes(self) -> int:
        return sum(verb in ("create", "apply") for verb, _, _ in self.kube.calls)


async def test_second_operator_backs_off_until_claim_expires() -> None:
    setup = ClaimsSetup()
    first, second = setup.claims("ops/one"), setup.claims("ops/two")

    assert await first.holder("research") == ""
    assert await second.holder("research") == "ops/one"
    assert await second.holder("other") == ""
    assert setup.rejected[-1] == 1
    for _ in range(10):
        setup.now += RENEW_SECONDS
        assert await first.holder("research") == ""
        assert await second.holder("research") == "ops/one"
    setup.now += RETRY_SECONDS
    await second.holder("research")
    setup.now += DURATION_SECONDS
    assert await second.holder("research") == ""
    assert await first.holder("research") == "ops/two"
    assert names.NAMESPACE_LEASE in setup.kube.named("leases")


async def test_claim_is_renewed_at_most_once_per_interval() -> None:
    setup = ClaimsSetup()
    claims = setup.claims("ops/one")

    for _ in range(100):
        await claims.holder("research")
    assert setup.writes == 1
    setup.now += RENEW_SECONDS
    await claims.holder("research")
    assert setup.writes == 2


async def test_released_claim_can_be_taken_at_once() -> None:
    setup = ClaimsSetup()
    first, second = setup.claims("ops/one"), setup.claims("ops/two")
    await first.holder("research")

    await first.release()

    assert await second.holder("research") == ""


async def test_claim_outlives_short_outage_of_api_server() -> None:
    setup = ClaimsSetup()
    claims = setup.claims("ops/one")
    await claims.holder("research")
    setup.kube.before = failing("get")

    setup.now += RENEW_SECONDS
    assert await claims.holder("research") == ""
    setup.now += MAX_AGE_SECONDS
    with pytest.raises(TransientError):
        await claims.holder("research")


async def test_operator_without_permission_for_leases_reconciles() -> None:
    setup = ClaimsSetup()

    def deny(verb: str, plural: str) -> None:
        raise AccessDenied(f"cannot {verb} {plural}")

    setup.kube.before = deny
    assert await setup.claims("ops/one").holder("research") == ""

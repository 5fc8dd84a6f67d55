import asyncio
from dataclasses import dataclass, field

import pytest

from raggrpo_operator.errors import Conflict
from raggrpo_operator.kube.client import LEASES
from raggrpo_operator.kube.lease import DURATION_SECONDS, Lease
from support.fakes.fake_kube import FakeKube, failing


@dataclass
class Clock:
    """A clock advanced by `sleep`."""

    now: float = 1000.0
    after_sleep: dict[int, object] = field(default_factory=dict)
    sleeps: int = 0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += 1
        if step := self.after_sleep.get(self.sleeps):
            assert callable(step)
            step()
        await asyncio.sleep(0)


def make_lease(kube: FakeKube, clock: Clock, identity: str) -> Lease:
    return Lease(kube, "here", "operator", identity, clock=clock, sleep=clock.sleep)


def holder(kube: FakeKube) -> str:
    return str(kube.objects[LEASES.plural, "here", "operator"]["spec"]["holderIdentity"])


async def test_second_replica_waits_until_lease_expires() -> None:
    kube = FakeKube()
    clock = Clock()
    await make_lease(kube, clock, "one").acquire()
    started = clock.now
    await make_lease(kube, clock, "two").acquire()

    assert holder(kube) == "two"
    assert DURATION_SECONDS <= clock.now - started <= 20


async def test_renewed_lease_blocks_other_replicas() -> None:
    kube = FakeKube()
    clock = Clock()
    first, second = make_lease(kube, clock, "one"), make_lease(kube, clock, "two")
    await first.acquire()

    for _ in range(20):
        clock.now += DURATION_SECONDS - 1
        assert await first.try_acquire()
        assert not await second.try_acquire()


async def test_released_lease_can_be_acquired_immediately() -> None:
    kube = FakeKube()
    clock = Clock()
    first = make_lease(kube, clock, "one")
    await first.acquire()
    await first.release()
    started = clock.now
    await make_lease(kube, clock, "two").acquire()

    assert clock.now == started
    assert holder(kube) == "two"


async def test_leader_stops_before_unrenewed_lease_expires() -> None:
    kube = FakeKube()
    clock = Clock()
    lease = make_lease(kube, clock, "one")
    await lease.acquire()
    renewed = clock.now
    kube.before = failing("get")
    await lease.renew_until_lost()

    assert clock.now - renewed < DURATION_SECONDS


async def test_leader_survives_transient_renewal_errors() -> None:
    kube = FakeKube()
    clock = Clock()
    lease = make_lease(kube, clock, "one")
    await lease.acquire()

    def fail() -> None:
        kube.before = failing("get", "apply")

    def recover() -> None:
        kube.before = lambda verb, plural: None

    clock.after_sleep = {2: fail, 4: recover}
    enough = asyncio.Event()
    clock.after_sleep[20] = enough.set
    keeping = asyncio.create_task(lease.renew_until_lost())
    await asyncio.wait(
        [keeping, asyncio.ensure_future(enough.wait())], return_when="FIRST_COMPLETED"
    )

    assert not keeping.done()
    keeping.cancel()


async def test_leader_stops_when_replaced() -> None:
    kube = FakeKube()
    clock = Clock()
    first, second = make_lease(kube, clock, "one"), make_lease(kube, clock, "two")
    await first.acquire()
    await second.try_acquire()
    clock.now += DURATION_SECONDS
    assert await second.try_acquire()
    async with asyncio.timeout(5):
        await first.renew_until_lost()

    assert holder(kube) == "two"


async def test_concurrent_lease_acquisition_has_one_winner() -> None:
    kube = FakeKube()
    clock = Clock()
    await make_lease(kube, clock, "gone").acquire()
    first, second = make_lease(kube, clock, "one"), make_lease(kube, clock, "two")
    assert not await first.try_acquire()
    assert not await second.try_acquire()
    clock.now += DURATION_SECONDS
    read = await kube.get(LEASES, "here", "operator")

    assert await first.try_acquire()
    with pytest.raises(Conflict):  # the second write has a stale resourceVersion
        await kube.apply(second._lease(read))
    assert not await second.try_acquire()


@pytest.mark.parametrize("transitions", [1, 2])
async def test_lease_records_number_of_transitions(transitions: int) -> None:
    kube = FakeKube()
    clock = Clock()
    for number in range(transitions):
        await make_lease(kube, clock, f"replica-{number}").acquire()
    spec = kube.objects[LEASES.plural, "here", "operator"]["spec"]
    assert spec["leaseTransitions"] == transitions

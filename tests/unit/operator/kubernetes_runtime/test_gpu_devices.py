from raggrpo_operator.kubernetes_runtime.rounds.gpu_devices import smallest_device
from support.builders.operator.jobs import make_job
from support.fakes.fake_kube import FakeKube, failing

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.memory": "81559"}},
    "status": {"allocatable": {"nvidia.com/gpu": "8"}},
}
CPU = {"resources.device": "CPU"}


async def test_nodes_tell_the_memory_of_their_gpus() -> None:
    kube = FakeKube()
    kube.objects["nodes", "", "n1"] = NODE
    device = await smallest_device(kube, make_job())
    assert device is not None
    assert device.memory_mib == 81559


async def test_without_an_answer_the_memory_is_unknown_and_the_round_goes_on() -> None:
    kube = FakeKube()
    kube.before = failing("list")
    assert await smallest_device(kube, make_job()) is None


async def test_a_job_on_cpus_asks_for_no_nodes() -> None:
    kube = FakeKube()
    assert await smallest_device(kube, make_job(CPU)) is None
    assert not kube.calls

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


async def test_gpu_memory_is_read_from_nodes() -> None:
    kube = FakeKube()
    kube.objects["nodes", "", "n1"] = NODE
    device = await smallest_device(kube, make_job())
    assert device is not None
    assert device.memory_mib == 81559


async def test_gpu_memory_is_unknown_when_nodes_cannot_be_listed() -> None:
    kube = FakeKube()
    kube.before = failing("list")
    assert await smallest_device(kube, make_job()) is None


async def test_cpu_job_does_not_list_nodes() -> None:
    kube = FakeKube()
    assert await smallest_device(kube, make_job(CPU)) is None
    assert not kube.calls

import psutil

from support.builders.trainer.policies import one_rank


def test_torch_store_listens_only_on_address_of_rank_0() -> None:
    with one_rank():
        sockets = psutil.Process().net_connections("tcp")

    listening = {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}

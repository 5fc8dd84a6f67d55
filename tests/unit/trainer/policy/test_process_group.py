import psutil

from support.builders.trainer.policies import one_rank


def test_store_listens_on_address_of_rank_0_only() -> None:
    with one_rank():
        sockets = psutil.Process().net_connections("tcp")

    listening = {s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}

"""The record of a running attempt is restored from its submission if the digest matches."""

import json
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.sealed_config import seal
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from raggrpo_operator.kube.client import CONFIG_MAPS
from support.builders.operator.jobs import KNOWN_TINY, make_job
from support.operator.reconciler_environment import (
    KEY,
    UID,
    ReconcilerEnvironment,
    make_running_status,
)


def submitted(number: int = 1, uid: str = UID) -> TrainerConfig:
    job = make_job()
    about = job.metadata.model_copy(update={"uid": uid, "namespace": KEY.namespace})
    own = job.model_copy(update={"metadata": about})
    return trainer_config(own, resolve(own), number=number)


@pytest.mark.parametrize(
    ("claimed", "is_believed"),
    [(submitted(), True), (submitted(number=1001), False), (submitted(uid="another"), False)],
)
async def test_attempt_record_is_restored_only_from_matching_configuration(
    claimed: TrainerConfig, is_believed: bool, tmp_path: Path, session: ClientSession
) -> None:
    details = {"status": "RUNNING", "runtime_env": {"env_vars": seal(claimed.to_json())}}

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=json.dumps(details))

    app = web.Application()
    app.add_routes([web.route("*", "/{anything:.*}", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    status = make_running_status(KNOWN_TINY) | {"configHash": submitted().attempt.config_hash}
    environment = ReconcilerEnvironment(tmp_path, session, status, url)
    environment.show_cluster()

    await environment.reconciler.round(KEY)
    await runner.cleanup()

    assert len(environment.kube.named(CONFIG_MAPS.plural)) == is_believed

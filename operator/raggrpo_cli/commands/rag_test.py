"""`raggrpo rag-test JOB.yaml`: test the retrieval endpoints of a job, also under load."""

import os
import sys
from collections.abc import Mapping

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.rag_test import RagTest
from raggrpo_api.trainer.sealed_config import seal
from raggrpo_cli.job_file import JobFile, Sets, fail
from raggrpo_cli.local_job import Endpoints, Mounts, load_local_job
from raggrpo_cli.rag_test_output import Most, Seconds, show_results
from raggrpo_cli.recorded_job import DirOption
from raggrpo_cli.terminal import AsJson
from raggrpo_cli.trainer_process import output_of
from raggrpo_operator.core.spec.resolve import trainer_config
from raggrpo_operator.local_runtime.secret_values import trainer_env

COMMAND = (sys.executable, "-m", "raggrpo_trainer.retrieval.rag_test")


def rag_test(
    job_file: JobFile,
    dir: DirOption = None,  # noqa: A002
    mount: Mounts = None,
    endpoint: Endpoints = None,
    set_: Sets = None,
    seconds: Seconds = 5.0,
    most: Most = 32,
    as_json: AsJson = False,
) -> None:
    """Test the retrieval endpoints: a single call, request variants, load, one training step."""
    job, resolved, *_ = load_local_job(job_file, dir, sets=set_, endpoints=endpoint, mounts=mount)
    config = trainer_config(job, resolved)
    if not config.retrieval.external:
        fail(
            "spec.retrieval.endpoints: all endpoints are managed and not running; specify the URL "
            "of a running service with --endpoint NAME=URL"
        )
    results = _measure(config, trainer_env(resolved.spec, os.environ), seconds, most)
    show_results(results, as_json=as_json)


def _measure(config: TrainerConfig, env: Mapping[str, str], seconds: float, most: int) -> RagTest:
    """Measure the endpoints in a trainer process, with the client that training uses."""
    command = [*COMMAND, str(seconds), str(most)]
    return RagTest.model_validate_json(output_of(command, {**env, **seal(config.to_json())}))

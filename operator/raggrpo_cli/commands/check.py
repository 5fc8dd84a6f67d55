"""`raggrpo check JOB.yaml`: run the preflight checks on this machine."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import PreflightResult
from raggrpo_cli.check_output import show_result
from raggrpo_cli.job_file import JobFile, Sets, fail
from raggrpo_cli.local_job import Endpoints, Mounts, load_local_job
from raggrpo_cli.recorded_job import DirOption, default_folder, with_start_path
from raggrpo_cli.terminal import AsJson
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from raggrpo_operator.local_runtime.secret_values import trainer_env


def check(
    job_file: JobFile,
    dir: DirOption = None,  # noqa: A002
    mount: Mounts = None,
    endpoint: Endpoints = None,
    set_: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Check paths, model, data, endpoints and the checkpoint folder before a run."""
    job, resolved, *_ = load_local_job(job_file, dir, sets=set_, endpoints=endpoint, mounts=mount)
    job = with_start_path(job, dir or default_folder(job.metadata.name))
    config = trainer_config(job, resolve(job))
    result = _preflight(config, trainer_env(resolved.spec, os.environ))
    show_result(job, result, as_json=as_json, in_pods=False)


def _preflight(config: TrainerConfig, env: Mapping[str, str]) -> PreflightResult:
    """Run the checks in a separate process, as in a cluster, and write only temporary files."""
    from raggrpo_operator.local_runtime.preflight_run import PreflightRun
    from raggrpo_operator.local_runtime.processes import Processes

    processes = Processes()
    with tempfile.TemporaryDirectory(prefix="raggrpo-check-") as folder:
        output, log_file = Path(folder) / "result.json", Path(folder) / "log"
        try:
            run = PreflightRun(processes, config, "", output=output, log_file=log_file, env=env)
            run.wait()
            observed = run.observe()
        finally:
            processes.terminate_all()
    if observed.result is None:
        fail(observed.problem, ExitCode.PREFLIGHT_FAILED)
    return observed.result

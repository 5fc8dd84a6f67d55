"""`kubectl raggrpo check|rag-test|export`: run the trainer's tools in a temporary pod."""

from collections.abc import Awaitable, Callable, Sequence
from io import BytesIO
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from raggrpo_api import names
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.preflight import PreflightResult
from raggrpo_api.trainer.rag_test import RagTest
from raggrpo_cli.check_output import show_result
from raggrpo_cli.job_file import FAILED, fail
from raggrpo_cli.push_results import require_target
from raggrpo_cli.rag_test_output import Most, Seconds, show_results
from raggrpo_cli.terminal import AsJson, show
from raggrpo_operator.core.rules.paths import volume_problem
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.kube.user_client import UserClient

from .cluster_job import (
    Context,
    Image,
    JobName,
    Kubeconfig,
    Namespace,
    get_job,
    run_in_cluster,
)
from .job_pods import LimitedOutput, run_in_trainer_pod

Model = TypeVar("Model", bound=BaseModel)
MAX_OUTPUT_BYTES = 1 << 20
"""Maximum of a result."""


class _Exported(BaseModel):
    """Result of an export."""

    step: int


PUSH = """
output=$1 target=$2; shift 2
"$@" && python -m raggrpo_staging.push --folder "$output" --target "$target" >&2
"""
"""Run a command that writes a folder, then upload the folder."""
CHECK = f'python -m raggrpo_trainer.preflight >&2; cat "${names.ENV_PREFLIGHT_OUTPUT}"'


def check(
    name: JobName,
    as_json: AsJson = False,
    image: Image = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Repeat the preflight checks of a job in a temporary pod."""
    command = ["sh", "-c", CHECK]
    run = _run(name, namespace, lambda _: command, image)
    job, output = run_in_cluster(kubeconfig, context, run)
    show_result(job, _parsed(PreflightResult, output), as_json=as_json, in_pods=True)


def rag_test(
    name: JobName,
    seconds: Seconds = 5.0,
    most: Most = 32,
    as_json: AsJson = False,
    image: Image = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Test the retrieval endpoints of a job from a temporary pod, also under load."""

    def command(job: RagGrpoJob) -> list[str]:
        if not resolve(job).spec.retrieval.external:
            fail("spec.retrieval.endpoints: the job has no endpoint with a URL")
        return ["python", "-m", "raggrpo_trainer.retrieval.rag_test", str(seconds), str(most)]

    _, output = run_in_cluster(kubeconfig, context, _run(name, namespace, command, image))
    show_results(_parsed(RagTest, output), as_json=as_json)


def export(
    name: JobName,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder to create on a volume of the job.")
    ],
    step: Annotated[str, typer.Option("--step", help="Step number, best or newest.")] = "newest",
    push: Annotated[
        str, typer.Option("--push", help="URL to upload the folder to, such as hf://org/name.")
    ] = "",
    image: Image = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Write a Hugging Face folder from a checkpoint to a volume of the job."""
    if push:
        require_target(push)
    if not output:
        fail("--output is empty; specify the folder to create")

    def command(job: RagGrpoJob) -> list[str]:
        spec = resolve(job, job.status.preflight.known_facts).spec
        if problem := volume_problem(output, spec.volumes):
            fail(f"--output: {problem}; specify a folder on a writable volume of the job")
        export = ["python", "-m", "raggrpo_trainer.checkpoint_export", spec.checkpoint.path, output]
        export += ["--step", step, "--model", spec.model.path]
        return ["sh", "-c", PUSH, "export", output, push, *export] if push else export

    run = _run(name, namespace, command, image, exports=True)
    _, result = run_in_cluster(kubeconfig, context, run)
    show(f"{output}: model after step {_parsed(_Exported, result).step}")
    if push:
        show(f"pushed to {push}")


def _run(
    name: str,
    namespace: str,
    command: Callable[[RagGrpoJob], Sequence[str]],
    image: str,
    *,
    exports: bool = False,
) -> Callable[[UserClient], Awaitable[tuple[RagGrpoJob, bytes]]]:
    """Return a function that returns a job and the output of a command in its trainer pod.

    It exits with the error of the command if that fails.
    """

    async def run(client: UserClient) -> tuple[RagGrpoJob, bytes]:
        job = await get_job(client, namespace, name)
        output = BytesIO()
        limited = LimitedOutput(output.write, MAX_OUTPUT_BYTES)
        result = await run_in_trainer_pod(
            client, job, command(job), image, limited, exports=exports
        )
        if result.exit_code:
            fail(result.errors.strip() or f"exit code {result.exit_code}", FAILED)
        return job, output.getvalue()

    return run


def _parsed(model: type[Model], output: bytes) -> Model:
    try:
        return model.model_validate_json(output)
    except ValidationError as error:
        text = output.decode(errors="replace").strip()[-500:]
        fail(f"the trainer gave no result: {text or error}", FAILED)

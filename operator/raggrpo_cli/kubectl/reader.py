"""A temporary pod that mounts the volumes of a job."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from raggrpo_api.job import RagGrpoJob
from raggrpo_operator.errors import AccessDenied, Conflict, NotFound, PermanentError
from raggrpo_operator.kube.client import PODS, Manifest, Resource
from raggrpo_operator.kube.pod_evidence import start_problem
from raggrpo_operator.kube.user_client import UserClient

START_SECONDS = 60.0
POLL_SECONDS = 0.5
CORE_EVENTS = Resource("v1", "events", "Event")


@asynccontextmanager
async def temporary_pod(
    client: UserClient, job: RagGrpoJob, render: Callable[[str], Manifest]
) -> AsyncIterator[str]:
    """Create the pod that `render` returns for a name, yield its name, then delete the pod.

    Raises:
        OperatorError: The pod cannot be created or does not start.

    """
    metadata = job.metadata
    name = f"{metadata.name}-reader-{uuid.uuid4().hex[:5]}"
    creating = asyncio.ensure_future(client.create(render(name)))
    try:
        # Shielded from cancellation by Ctrl-C: deleting the pod requires its uid.
        await asyncio.shield(creating)
        await _until_running(client, metadata.namespace, name)
        yield name
    finally:
        pod = await creating
        with suppress(NotFound, Conflict):
            await client.delete(PODS, metadata.namespace, name, pod["metadata"]["uid"])


async def _until_running(client: UserClient, namespace: str, name: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_SECONDS
    while True:
        pod = await client.get(PODS, namespace, name)
        phase = pod.get("status", {}).get("phase")
        if phase == "Running":
            return
        problem = start_problem(pod)
        is_final = phase == "Failed" or (problem is not None and problem.is_final)
        if is_final or loop.time() > deadline:
            reason = problem.message if problem is not None else await _first_warning(client, pod)
            raise PermanentError(
                f"the job's volumes cannot be read: {reason}; fix the cause, or mount the claims "
                "in another pod"
            )
        await asyncio.sleep(POLL_SECONDS)


async def _first_warning(client: UserClient, pod: Manifest) -> str:
    """Return the first Warning Event of the pod; only Events report mount failures."""
    metadata = pod["metadata"]
    try:
        events = await client.find(
            CORE_EVENTS, metadata["namespace"], fields=f"involvedObject.uid={metadata['uid']}"
        )
    except AccessDenied:
        return f"pod {metadata['name']} does not start, and reading its Events is not permitted"
    warnings = [event.get("message", "") for event in events if event.get("type") == "Warning"]
    return f"pod {metadata['name']} does not start: {[*warnings, 'its Events give no reason'][0]}"

"""The command of an agent's container in a local run."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.names import ENV_GATEWAY_URL, GATEWAY_ENV
from raggrpo_operator.core.lifecycle.actions import PodPlan, StartAgent
from raggrpo_operator.core.lifecycle.before_attempt.services import agent_hash
from raggrpo_operator.core.lifecycle.observed import ServiceObserved
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.local_runtime import warden
from raggrpo_operator.local_runtime.agent_process import AgentProcess
from raggrpo_operator.local_runtime.processes import Processes, free_ports
from support.builders.operator.jobs import make_job

SERVER = """
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(dict(os.environ)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def make_action(port: int, **values: Any) -> StartAgent:
    words = {"command": ["python", "-c", SERVER], "args": [str(port)], "port": port}
    container = {"image": "app:1"} | words | values
    job = make_job(
        {"rollout.agent": {"type": "Container", "identify": "Trace", "container": container}}
    )
    spec = resolve(job).spec
    assert spec.rollout.agent is not None
    assert spec.rollout.agent.container is not None
    plan = PodPlan(spec, "", size(spec))
    return StartAgent(plan, spec.rollout.agent.container, agent_hash(spec))


async def observed(
    agent: AgentProcess, until: Callable[[ServiceObserved], bool]
) -> ServiceObserved:
    deadline = time.monotonic() + 30
    while True:
        service = await agent.observe()
        assert service is not None
        if until(service):
            return service
        assert time.monotonic() < deadline, service
        await asyncio.sleep(0.05)


def environment(address: str) -> dict[str, str]:
    with urllib.request.urlopen(address, timeout=10) as response:
        values: dict[str, str] = json.load(response)
    return values


@pytest.mark.row("F2")
@pytest.mark.parametrize("health_path", ["", "/healthz"])
async def test_restarted_command_has_same_gateway(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch, health_path: str
) -> None:
    monkeypatch.setenv("RAGGRPO_SECRET_SEARCH_PASSWORD", "word")
    reference = {"name": "search", "key": "password"}
    env = [{"name": "SEARCH_PASSWORD", "secretKeyRef": reference}, {"name": "A", "value": "b"}]
    action = make_action(free_ports(1)[0], env=env, healthPath=health_path)
    agent = AgentProcess(processes, tmp_path)
    assert (await agent.observe(), agent.gateway_env()) == (None, {})

    agent.start(action)
    ready = await observed(agent, lambda service: service.is_ready)
    first = await asyncio.to_thread(environment, ready.address)
    agent.start(action)  # it is running: nothing is started
    warden.sweep(f"{processes.mark}.agent")
    dead = await observed(agent, lambda service: service.has_ended)
    agent.start(action)
    again = await observed(agent, lambda service: service.is_ready)
    second = await asyncio.to_thread(environment, again.address)
    agent.stop()

    url = agent.gateway_env()[ENV_GATEWAY_URL]
    assert {first[name] for name in GATEWAY_ENV} == {url, "none"}
    assert (first["SEARCH_PASSWORD"], first["A"]) == ("word", "b")
    assert [second[name] for name in sorted(GATEWAY_ENV)] == [
        first[name] for name in sorted(GATEWAY_ENV)
    ]
    assert dead.cause is None
    assert (again.address, again.spec_hash) == (ready.address, action.spec_hash)
    assert await agent.observe() is None


async def test_command_of_changed_container_replaces_running_one(
    tmp_path: Path, processes: Processes
) -> None:
    port = free_ports(1)[0]
    agent = AgentProcess(processes, tmp_path)
    agent.start(make_action(port))
    old = await observed(agent, lambda service: service.is_ready)

    agent.start(make_action(port, env=[{"name": "A", "value": "b"}]))

    new = await observed(agent, lambda service: service.is_ready)
    changed = await asyncio.to_thread(environment, new.address)
    agent.stop()
    assert changed["A"] == "b"
    assert replace(new, spec_hash=old.spec_hash) == old != new


async def test_command_that_exits_is_reported_with_end_of_its_log(
    tmp_path: Path, processes: Processes
) -> None:
    agent = AgentProcess(processes, tmp_path)
    agent.start(make_action(free_ports(1)[0], command=["python", "-c", "raise SystemExit('no x')"]))

    ended = await observed(agent, lambda service: service.has_ended)

    assert "no x" in ended.problem
    assert not ended.is_ready

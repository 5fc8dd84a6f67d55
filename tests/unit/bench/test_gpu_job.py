"""`python -m gpu.job`: time limits, results and what a failed run leaves behind."""

import json
import os
import signal
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.training import train_throughput
from bench.training.workload_job import job_of
from gpu.job import __main__ as runner
from gpu.job.runs import (
    GROUPS,
    NEEDS,
    ROOT,
    RUNS,
    SETUP_SECONDS,
    Command,
    Run,
    job_values,
    no_error,
    shortage_error,
    smoke,
    smoke_values,
)
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Severity
from raggrpo_operator.local_runtime.overrides import apply_options
from support.processes.waiting import wait_for


@pytest.fixture(autouse=True)
def _same_signal_handlers() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run_of(
    script: str,
    *,
    step: str = "a",
    name: str = "run",
    limit: int = 20,
    error_in: Callable[..., str] = no_error,
) -> Run:
    """Return a run of a Python script, whose result is `result.json` in its folder."""

    def command(folder: Path, *, cpu: bool) -> Command:
        return [sys.executable, "-c", script, str(folder)], {"ON_CPU": str(cpu)}

    def values(folder: Path) -> dict[str, Any]:
        measured: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return measured

    return Run(step, name, limit, command, values, error_in)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


WRITES = """import sys; open(sys.argv[1] + '/result.json', 'w').write('{"sync, s": 0.13}')"""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that executes runs; it returns exit code and results.json."""

    def execute(
        *runs: Run, steps: str = "abc", cpu: bool = False
    ) -> tuple[int, list[dict[str, Any]]]:
        monkeypatch.setattr(runner, "RUNS", runs)
        out, work = tmp_path / "out", tmp_path / "work"
        arguments = ["gpu.job", "--out", str(out), "--work", str(work), "--steps", steps]
        monkeypatch.setattr(sys, "argv", [*arguments, *(["--cpu"] if cpu else [])])
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        code = runner.main()
        return code, json.loads((out / "results.json").read_text())["runs"]

    return execute


def test_failed_run_does_not_stop_the_next_run(
    results: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fails = run_of("print('no such kernel'); raise SystemExit(3)", name="fails")
    code, (failed, passed) = results(fails, run_of(WRITES, step="b", name="passes"))
    assert code == 1
    assert failed["error"] == "exit code 3: no such kernel"
    assert (passed["error"], passed["values"]) == ("", {"sync, s": 0.13})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("a fails: FAILED (exit code 3: no such kernel)")
    assert lines[2].startswith("b passes: ok")
    with tarfile.open(tmp_path / "out" / "logs.tar.gz") as logs:
        assert "logs/fails.log" in logs.getnames()
    table = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert table[-1].endswith("| sync, s 0.13 |")


def test_run_beyond_its_time_limit_is_ended_with_all_its_processes(
    results: Callable[..., Any], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    child = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(pids)!r}, 'w').write(str(os.getpid())); time.sleep(99)"
    )
    parent = (
        "import subprocess, sys, time; from pathlib import Path\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        f"while not Path({str(pids)!r}).exists(): time.sleep(0.05)\n"
        "print('started', flush=True); time.sleep(99)"
    )
    code, [result] = results(run_of(parent, limit=3))
    assert code == 1
    assert result["error"] == "no end after 3 s: started"
    wait_for(lambda: not is_running(int(pids.read_text())))


def test_interruption_ends_all_processes_and_keeps_logs(
    results: Callable[..., Any], tmp_path: Path
) -> None:
    script = (
        "import os, signal, sys, time\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "print('interrupting', flush=True); os.kill(os.getppid(), signal.SIGINT); time.sleep(99)"
    )
    code, done = results(run_of(WRITES, name="first"), run_of(script), run_of(WRITES, name="last"))
    assert code == runner.INTERRUPTED
    assert [result["name"] for result in done] == ["first"]
    wait_for(lambda: not is_running(int((tmp_path / "pid").read_text())))
    with tarfile.open(tmp_path / "out" / "logs.tar.gz") as logs:
        content = logs.extractfile("logs/run.log")
        assert content is not None
        assert content.read() == b"interrupting\n"


def test_result_has_the_line_that_states_the_failure(results: Callable[..., Any]) -> None:
    lines = ["job quickstart: failed (CudaOutOfMemory): step 2", "report: report.html"]
    _, [result] = results(run_of(f"print(*{lines}, sep='\\n'); raise SystemExit(1)"))
    assert result["error"] == f"exit code 1: {lines[0]}"


def test_files_of_runs_are_in_the_logs_without_weights(
    results: Callable[..., Any], tmp_path: Path
) -> None:
    script = (
        "import os, sys; os.chdir(sys.argv[1]); os.mkdir('step'); open('run.log', 'w').close()\n"
        "[os.truncate(os.open(f'step/{n}.distcp', os.O_CREAT | os.O_RDWR), n * 2**20)"
        " for n in (1, 65)]"
    )
    results(run_of(script))
    with tarfile.open(tmp_path / "out" / "logs.tar.gz") as logs:
        names = logs.getnames()
    assert "run/run.log" in names
    assert [name for name in names if name.endswith(".distcp")] == []
    assert [file.name for file in (tmp_path / "work" / "run" / "step").iterdir()] == ["1.distcp"]


def test_engine_smoke_test_shows_its_stack_at_the_time_limit(
    results: Callable[..., Any], tmp_path: Path
) -> None:
    _, [result] = results(Run("a", "smoke", 4, smoke("0.5B"), smoke_values), cpu=True)
    assert result["error"].startswith("no end after 4 s")
    log = (tmp_path / "work" / "logs" / "smoke.log").read_text()
    # Not the frame of main: faulthandler prints 100 frames, and nested imports can have more.
    assert "(most recent call first):" in log


def test_run_without_a_result_is_a_failure(results: Callable[..., Any]) -> None:
    _, [result] = results(run_of("print('done')"))
    assert result["error"].startswith("no result: FileNotFoundError")


def test_run_without_the_expected_fault_is_a_failure(results: Callable[..., Any]) -> None:
    writes = WRITES.replace('"sync, s": 0.13', '"causes": ["Succeeded"]')
    code, [result] = results(run_of(writes, error_in=shortage_error))
    assert code == 1
    assert result["error"] == "no attempt ended with CudaOutOfMemory: Succeeded"


def test_run_whose_values_are_incomplete_is_a_failure(results: Callable[..., Any]) -> None:
    _, [first, second] = results(
        run_of(WRITES, error_in=shortage_error), run_of(WRITES, name="second")
    )
    assert first["error"] == "no result: KeyError: 'causes'"
    assert second["error"] == ""


def test_only_the_chosen_steps_run(results: Callable[..., Any]) -> None:
    runs = [run_of(WRITES, step=step, name=step) for step in "abc"]
    _, chosen = results(*runs, steps="a,c")
    assert [each["step"] for each in chosen] == ["a", "c"]


def test_every_step_has_a_run_with_a_time_limit() -> None:
    assert sorted({run.step for run in RUNS}) == list("abcdefg")
    assert len({run.name for run in RUNS}) == len(RUNS)
    for run in RUNS:
        assert 0 < run.limit <= 300, run.name


def test_groups_of_steps_fit_fifteen_minutes() -> None:
    assert sorted("".join(GROUPS)) == sorted({run.step for run in RUNS})
    for group in GROUPS:
        limits = sum(run.limit for run in RUNS if run.step in group)
        assert SETUP_SECONDS + limits <= 900, group
    for step, other in NEEDS.items():
        assert any({step, other} <= set(group) for group in GROUPS)


def test_docs_have_the_time_of_each_group() -> None:
    docs = (ROOT / "docs" / "internals" / "gpu.md").read_text()
    for group in GROUPS:
        limits = sum(run.limit for run in RUNS if run.step in group)
        assert f"| `make gpu-job STEPS={group}` | {SETUP_SECONDS + limits} s |" in docs


def test_list_shows_runs_and_groups(
    results: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.job", "--list"])
    assert runner.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(RUNS) + len(GROUPS)
    assert lines[0].split() == ["a", "engine-0.5B", "120", "s"]
    assert lines[-len(GROUPS)] == "STEPS=abcf: up to 800 s with 120 s for the setup"


def test_step_without_the_step_it_needs_is_rejected(
    results: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        results(run_of(WRITES, step="f"), steps="f")
    assert "step f compares its results with step b; select both" in capsys.readouterr().err


def test_commands_of_all_runs_can_be_built(tmp_path: Path) -> None:
    for run in RUNS:
        for cpu in (False, True):
            folder = tmp_path / f"{run.name}-{cpu}"
            folder.mkdir()
            command, _ = run.command(folder, cpu=cpu)
            assert command[0] == sys.executable
            script = next(word for word in command[1:] if word.endswith((".py", ".main")))
            assert script == "raggrpo_cli.main" or os.access(script, os.R_OK)


H100 = {"gpu_memory_mib": 81_559, "gpu_product": "NVIDIA H100 80GB HBM3", "gpu_compute_major": 9}


@pytest.mark.parametrize(
    "run", [run for run in RUNS if run.values is job_values], ids=lambda run: run.name
)
def test_job_passes_all_rules_on_an_h100(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    command, _ = run.command(Path(), cpu=False)
    monkeypatch.setattr(sys, "argv", command[1:])
    options = train_throughput.arguments()
    work = train_throughput.workload(options)
    raw = job_of(work, Path("/model"), Path("/runs"), {"name": "Http", "url": "http://judge"})
    job = parse_job(apply_options(raw, options.set, []))
    assert isinstance(job, RagGrpoJob)
    heads, layer = (
        work.hidden // work.heads,
        2 * work.hidden**2 + 3 * work.hidden * work.intermediate,
    )
    layer += 2 * work.hidden * work.kv_heads * heads
    facts = Facts(
        **H100,
        parameters=2 * work.vocabulary * work.hidden + work.layers * layer,
        layers=work.layers,
        hidden_size=work.hidden,
        heads=work.heads,
        kv_heads=work.kv_heads,
        head_size=heads,
        mlp_size=work.intermediate,
        vocabulary=work.vocabulary,
        context_length=work.prompt_tokens + work.response_tokens,
        rows=work.total_steps * work.prompts,
    )
    all_violations = violations(job, resolve(job, facts), facts)
    assert [each for each in all_violations if each.severity is Severity.ERROR] == []

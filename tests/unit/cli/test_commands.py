import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from raggrpo_api.status.attempts import AttemptRecord, RestartCounts
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Condition, ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus, ProgressStatus
from raggrpo_api.trainer.progress import CheckpointRef, Segment
from raggrpo_cli.commands.run import exit_code
from raggrpo_cli.main import app
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.local_runtime.job_folder import JobFolder, State
from support.builders.operator.jobs import SAMPLES, make_job, make_raw_job


def raggrpo(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def make_job_file(folder: Path, **changes: Any) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(make_raw_job(changes)))
    return path


def make_failed(reason: str) -> JobStatus:
    failed = Condition(type=ConditionType.FAILED, status="True", reason=reason, message="why")
    return JobStatus(phase=Phase.FAILED, conditions=[failed])


def make_recorded_job(folder: Path, status: JobStatus | None = None) -> Path:
    place = JobFolder(folder / "job")
    place.acquire()
    place.save_job(make_job({"checkpoint.path": str(folder / "checkpoints")}))
    record = AttemptRecord(
        number=1, cause=Cause.ROLLOUT_ENGINE_LOST, message="engine 0 died\nat dawn", to_step=7
    )
    progress = ProgressStatus(step=7, total_steps=60, progress_percentage=11, stage="Training")
    status = status or JobStatus(
        phase=Phase.RESTARTING,
        attempt=1,
        attempts=[record],
        progress=progress,
        checkpoint=CheckpointRef(step=5, path="/c/step_5"),
        restarts=RestartCounts(total=1),
    )
    place.save(State(uid="u", status=status))
    place.release()
    return place.path


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_validate_accepts_sample_jobs(path: Path) -> None:
    result = raggrpo("validate", path)
    assert result.exit_code == 0, result.output
    assert "is valid" in result.output


def test_validate_reports_invalid_override(tmp_path: Path) -> None:
    result = raggrpo("validate", make_job_file(tmp_path), "--set", "rollout.n=1")
    assert result.exit_code == 2
    assert "spec.rollout.n: " in result.output


def test_plan_shows_origin_of_each_value(tmp_path: Path) -> None:
    result = raggrpo("plan", make_job_file(tmp_path), "--set", "rollout.n=4")
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert ["rollout.n", "user", "4"] in lines
    assert ["algorithm.groupSize", "coupled", "4"] in lines


def test_plan_shows_segments_of_job_folder_and_changes_since_last_run(tmp_path: Path) -> None:
    job_file = make_job_file(tmp_path, **{"spec.rollout.n": 5})
    folder = make_recorded_job(tmp_path)
    state = JobFolder(folder).load()
    state.spec = make_raw_job()["spec"]
    segment = Segment(first_step=3, changes=["rollout.temperature: 0.7 → 0.6"])
    state.status = replace(state.status, segments=[segment])
    JobFolder(folder).save(state)

    result = raggrpo("plan", job_file, "--dir", folder)

    assert result.exit_code == 0, result.output
    assert "from step 3: rollout.temperature: 0.7 → 0.6" in result.output
    assert "next attempt, from step 6: rollout.n: 3 → 5" in result.output
    assert "Segments" not in raggrpo("plan", job_file, "--dir", tmp_path / "none").output


def test_plan_lists_changes_to_job_that_it_starts_from(tmp_path: Path) -> None:
    make_recorded_job(tmp_path)
    start = {"checkpoint": {"jobRef": "job"}}
    changes = {"spec.training.startFrom": start, "spec.rollout.n": 5}
    job_file = make_job_file(tmp_path, **changes)

    result = raggrpo("plan", job_file, "--dir", tmp_path / "next")

    assert "next attempt, from step 6: rollout.n: 3 → 5" in result.output


def test_run_rejects_unknown_job_to_start_from(tmp_path: Path) -> None:
    start = {"checkpoint": {"jobRef": "unknown"}}
    job_file = make_job_file(
        tmp_path,
        **{"spec.training.startFrom": start, "spec.resources.device": "CPU", "spec.volumes": []},
    )

    result = raggrpo("run", job_file, "--dir", tmp_path / "next")

    assert result.exit_code == 2
    assert "training.startFrom.checkpoint.jobRef" in result.output
    assert f"{tmp_path / 'unknown'} is not a job folder" in result.output.replace("\n", " ")


def test_plan_json_has_trainer_config(tmp_path: Path) -> None:
    output = json.loads(raggrpo("plan", make_job_file(tmp_path), "--json").output)
    assert output["config"]["rollout"]["n"] == 3
    assert output["origins"]["rollout.n"] == "preset"
    assert output["work"]["completions"] == 3 * output["config"]["data"]["trainBatchSize"]
    assert output["problems"] == []


@pytest.mark.row("B4")
def test_plan_prints_manifests(tmp_path: Path) -> None:
    result = raggrpo("plan", make_job_file(tmp_path), "--manifests")

    assert result.exit_code == 0
    manifests = {each["kind"]: each for each in yaml.safe_load_all(result.output)}
    assert [*manifests] == ["NetworkPolicy", "Pod", "RayCluster", "ConfigMap"]
    head = manifests["RayCluster"]["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert head["image"] == f"raggrpo/trainer:{version('raggrpo-operator')}"
    assert {each["metadata"]["namespace"] for each in manifests.values()} == {"default"}


def test_plan_of_invalid_job_shows_problems_without_manifests(tmp_path: Path) -> None:
    result = raggrpo("plan", make_job_file(tmp_path), "--manifests", "--set", "rollout.n=1")
    assert result.exit_code == 2
    assert "spec.rollout.n: " in result.output
    assert "kind: RayCluster" not in result.output


@pytest.mark.row("A16")
def test_diff_shows_changed_fields_of_attempt(tmp_path: Path) -> None:
    folder = make_recorded_job(tmp_path, JobStatus(phase=Phase.RUNNING, attempt=2))
    for number, tokens in ((1, 4096), (2, 2048)):
        config = tmp_path / "checkpoints" / "logs" / "attempts" / str(number) / "config.json"
        config.parent.mkdir(parents=True)
        config.write_text(json.dumps({"training": {"tokens": tokens}, "attempt": number}))
    result = raggrpo("diff", folder)
    same = raggrpo("diff", f"{folder}@1", f"{folder}@1")

    assert result.output == f"{folder}@1 → {folder}@2\ntraining.tokens: 4096 → 2048\n"
    assert same.output.splitlines()[1] == "no differences"
    assert (result.exit_code, same.exit_code) == (0, 0)


def test_diff_reports_missing_job_folder_attempt_and_configuration(tmp_path: Path) -> None:
    folder = make_recorded_job(tmp_path, JobStatus(attempt=2))
    nowhere, never, lost = (
        raggrpo("diff", name) for name in (tmp_path, f"{folder}@3", f"{folder}@2")
    )

    assert (nowhere.exit_code, never.exit_code, lost.exit_code) == (2, 2, 2)
    assert "is not a job folder" in nowhere.output
    assert "has no attempt 3: its attempts are 1 to 2" in never.output
    assert "the configuration of attempt 1 cannot be read" in lost.output


def test_status_shows_progress_and_attempts(tmp_path: Path) -> None:
    result = raggrpo("status", "--dir", make_recorded_job(tmp_path))

    assert result.exit_code == 0
    assert "phase     Restarting" in result.output
    assert "progress  step 7/60 (11 %)" in result.output
    assert "newest    /c/step_5" in result.output
    assert "attempt   1 (First): RolloutEngineLost, steps ? to 7, lost 0" in result.output
    assert "            at dawn" in result.output


def test_status_shows_sizing_on_request(tmp_path: Path) -> None:
    status = JobStatus(sizing=size(resolve(make_job()).spec))
    folder = make_recorded_job(tmp_path, status)

    assert "CPUs per pod" not in raggrpo("status", "--dir", folder).output
    assert "CPUs per pod" in raggrpo("status", "--dir", folder, "--sizing").output


def test_status_json_contains_restart_counts(tmp_path: Path) -> None:
    status = json.loads(raggrpo("status", "--dir", make_recorded_job(tmp_path), "--json").output)
    assert status["restarts"]["total"] == 1


def test_status_finds_folder_by_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_recorded_job(tmp_path).rename(tmp_path / "small")
    (tmp_path / "raggrpo-jobs").mkdir()
    (tmp_path / "small").rename(tmp_path / "raggrpo-jobs" / "small")
    assert "phase     Restarting" in raggrpo("status", make_job_file(tmp_path)).output


@pytest.mark.parametrize("verb", ["status", "logs", "report"])
def test_job_folder_commands_reject_folder_without_job(verb: str, tmp_path: Path) -> None:
    result = raggrpo(verb, "--dir", tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path} is not a job folder: create it with `raggrpo run" in result.output


def test_status_requires_file_or_folder() -> None:
    assert "specify JOB.yaml, or its folder with --dir" in raggrpo("status").output


def test_status_reports_damaged_state_file_with_remedy(tmp_path: Path) -> None:
    folder = make_recorded_job(tmp_path)
    (folder / "state.json").write_text('{"status": ')
    result = raggrpo("status", "--dir", folder)

    assert result.exit_code == 2
    assert "state.json is damaged" in result.output
    assert "remove it to start a new job" in result.output


def test_logs_print_newest_or_requested_attempt(tmp_path: Path) -> None:
    folder = make_recorded_job(tmp_path)
    for number in (1, 2, 10):
        log = tmp_path / "checkpoints" / "logs" / "attempts" / str(number) / "driver.log"
        log.parent.mkdir(parents=True)
        log.write_text(f"log of {number}\n")

    assert raggrpo("logs", "--dir", folder).output == "log of 10\n"
    assert raggrpo("logs", "--dir", folder, "--attempt", 2).output == "log of 2\n"
    assert "attempts with logs: 1, 2, 10" in raggrpo("logs", "--dir", folder, "--attempt", 3).output


def test_logs_tail_prints_last_lines(tmp_path: Path) -> None:
    folder = make_recorded_job(tmp_path)
    log = tmp_path / "checkpoints" / "logs" / "attempts" / "1" / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\nthree\n")

    def tail(lines: int) -> str:
        return raggrpo("logs", "--dir", folder, "--tail", lines).output

    outputs = [tail(lines) for lines in (-1, 0, 1, 2, 9)]
    assert outputs == ["one\ntwo\nthree\n", "", "three\n", "two\nthree\n", "one\ntwo\nthree\n"]


def test_logs_follow_exits_when_attempt_has_ended(tmp_path: Path) -> None:
    folder = make_recorded_job(tmp_path)
    log = tmp_path / "checkpoints" / "logs" / "attempts" / "1" / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\n")

    assert raggrpo("logs", "--dir", folder, "--follow").output == "one\n"


def test_logs_follow_prints_lines_of_running_attempt(tmp_path: Path) -> None:
    running = JobStatus(attempt=1, attempts=[AttemptRecord(number=1)])
    folder = make_recorded_job(tmp_path, running)
    log = tmp_path / "checkpoints" / "logs" / "attempts" / "1" / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\n")
    run = JobFolder(folder)
    run.acquire()

    with ThreadPoolExecutor(1) as thread:
        followed = thread.submit(raggrpo, "logs", "--dir", folder, "--follow", "--tail", 1)
        with log.open("a") as writer:
            writer.write("three\n")
        run.release()

    assert followed.result(timeout=60).output.splitlines()[-1] == "three"


def test_logs_are_read_from_live_driver_log_while_running(tmp_path: Path) -> None:
    folder = make_recorded_job(tmp_path)
    place = JobFolder(folder)
    state = place.load()
    state.temp_dir = str(tmp_path / "raggrpo-x")
    place.save(state)
    live = tmp_path / "raggrpo-x" / "driver-1.log"
    live.parent.mkdir(parents=True)
    live.write_text("live\n")

    assert raggrpo("logs", "--dir", folder).output == "live\n"


def test_logs_error_contains_log_folder_when_there_are_no_logs(tmp_path: Path) -> None:
    folder = make_recorded_job(tmp_path)
    result = raggrpo("logs", "--dir", folder)
    assert result.exit_code == 2
    assert str(folder / "logs") in result.output


def test_crd_command_prints_crd() -> None:
    crd = yaml.safe_load(raggrpo("crd").output)
    assert crd["metadata"]["name"] == "raggrpojobs.raggrpo.io"


def test_run_reports_missing_mount_before_creating_job_folder(tmp_path: Path) -> None:
    result = raggrpo("run", make_job_file(tmp_path), "--dir", tmp_path / "job")
    assert result.exit_code == 2
    assert "--mount work=/path/to/folder" in result.output
    assert not (tmp_path / "job").exists()


def test_run_reports_environment_variable_for_missing_secret(tmp_path: Path) -> None:
    env = [{"name": "WANDB_API_KEY", "secretKeyRef": {"name": "wandb", "key": "api-key"}}]
    job = make_job_file(tmp_path, **{"spec.env": env, "spec.resources": {"device": "CPU"}})
    result = raggrpo("run", job, "--mount", f"work={tmp_path}", "--dir", tmp_path / "job")
    assert result.exit_code == 2
    assert "export RAGGRPO_SECRET_WANDB_API_KEY=..." in result.output


def test_run_rejects_unwritable_job_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    job = make_job_file(tmp_path, **{"spec.resources": {"device": "CPU"}})
    result = raggrpo("run", job, "--mount", f"work={tmp_path}", "--dir", tmp_path / "file" / "job")

    assert result.exit_code == 2
    assert "cannot be written" in result.output
    assert "--dir" in result.output


@pytest.mark.parametrize(
    ("status", "suspended_by_spec", "code"),
    [
        (JobStatus(phase=Phase.SUCCEEDED), False, 0),
        (JobStatus(phase=Phase.INVALID), False, 2),
        (make_failed("ConfigError"), False, 2),
        (make_failed("DataError"), False, 3),
        (make_failed("PreflightFailed"), False, 4),
        (make_failed("RewardCodeError"), False, 5),
        (make_failed("RestartBudgetExhausted"), False, 1),
        (JobStatus(phase=Phase.SUSPENDED), False, 130),
        (JobStatus(phase=Phase.SUSPENDED), True, 0),
        (JobStatus(phase=Phase.RUNNING), False, 130),
    ],
)
def test_run_exit_code_matches_status(
    status: JobStatus, suspended_by_spec: bool, code: int
) -> None:
    assert exit_code(status, suspended_by_spec=suspended_by_spec) == code


def test_help_lists_all_commands() -> None:
    verbs = (
        "run",
        "validate",
        "plan",
        "check",
        "rag-test",
        "status",
        "logs",
        "report",
        "compare",
        "diff",
    )

    output = raggrpo("--help").output

    assert all(verb in output for verb in verbs)


def test_cli_does_not_import_heavy_modules() -> None:
    heavy = "{'torch', 'vllm', 'ray', 'transformers', 'numpy', 'kopf', 'kubernetes'}"
    code = f"import sys, raggrpo_cli.main; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("https://host/folder", "results cannot be pushed to https://"),
        ("hf://datasets/org/name", "results are a model, not a data set"),
        ("org/name", "does not start with a known scheme"),
    ],
)
def test_export_checks_target_before_export(tmp_path: Path, target: str, message: str) -> None:
    result = raggrpo("export", tmp_path, "-o", tmp_path / "out", "--push", target)
    assert result.exit_code == 2
    assert f"--push {target}: " in result.output
    assert message in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("output", ["", "."])
def test_export_rejects_output_that_is_no_new_folder(tmp_path: Path, output: str) -> None:
    result = raggrpo("export", tmp_path, "--output", output)
    assert result.exit_code == 2
    assert "--output is empty or the working directory; specify the folder" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dir", "{job}"], "/checkpoints is not a folder"),
        (["{job}"], "/job has no complete checkpoint"),
        (["{job}", "--dir", "{job}"], "specify either a checkpoint folder or a job folder"),
        ([], "specify either a checkpoint folder or a job folder"),
    ],
)
def test_export_reports_missing_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    job = make_recorded_job(tmp_path)
    result = raggrpo("export", *(a.format(job=job) for a in arguments), "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert message in result.output + capfd.readouterr().err

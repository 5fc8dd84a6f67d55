"""Histories and states made to break the commands that read a job folder."""

import json
from pathlib import Path

import pytest

from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.history import History, history_file, read_records
from support.builders.operator.runs import log_dir_of, make_job_folder, write_steps
from support.hostile.limited_process import Make, outcomes
from support.hostile.special_files import SECRET, SPECIAL_FILES

VALID = {
    "step": 1,
    "step_seconds": 1.0,
    "seconds": {"train": 1.0},
    "retrieval": {},
    "num_samples": 8,
    "num_sampled_tokens": 100,
}


def history(*records: object) -> Make:
    """Return a function that writes lines to the history of the second attempt."""

    def write(folder: Path) -> None:
        lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
        history_file(log_dir_of(folder), 2).write_text("\n".join(lines) + "\n")

    return write


def step(**values: object) -> Make:
    return history({**VALID, "step": 2, **values})


def event(name: object, **values: object) -> Make:
    return history({"event": name, "step": 1, **values})


def state(content: str | bytes) -> Make:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / "state.json").write_bytes(raw)


def special(name: str, make: Make) -> Make:
    def replace(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)

    return replace


def large_line(folder: Path) -> None:
    with history_file(log_dir_of(folder), 2).open("ab") as file:
        file.truncate(5 << 30)  # sparse: it takes no space on the disk


HISTORY = "checkpoints/logs/metrics.e2.jsonl"
COUNTED: dict[str, Make] = {
    "not JSON": history("{", "[", "nothing"),
    "not objects": history("[]", "1", "null", '"x"'),
    "deep nesting": history("[" * 100_000),
    "not UTF-8": lambda folder: history_file(log_dir_of(folder), 2).write_bytes(b'{"a": "\xff"}\n'),
    "NUL bytes": lambda folder: history_file(log_dir_of(folder), 2).write_bytes(b"\0" * 99 + b"\n"),
    "line of 5 GB": large_line,
    "no step": history({"loss": 1.0}),
    "step as text": step(step="2"),
    "step as list": step(step=[2]),
    "step as truth value": step(step=True),
    "negative step": step(step=-1),
    "step beyond 2**53": step(step=10**30),
    "step with many digits": history('{"step": ' + "9" * 100_000 + "}"),
    "epoch as object": step(epoch={}),
    "seconds as number": step(seconds=3),
    "seconds of text": step(seconds={"train": "long"}),
    "many stages": step(seconds={f"s{i}": 1.0 for i in range(10_000)}),
    "retrieval as list": step(retrieval=[1]),
    "retrieval without counts": step(retrieval={"rag": {}}),
    "failures as text": step(
        retrieval={"rag": {"answered": 1, "failures": "x", "p50": 1, "p95": 2}}
    ),
    "rewards as number": step(reward_parts=1),
    "reward as text": step(reward_mean="high"),
    "memory as list": step(host_memory_bytes=[1]),
    "shares of lists": step(shares={"train": [1]}),
    "event as number": event(7),
    "event as list": event(["stage"]),
    "stage without name": event("stage", seconds=1.0),
    "stage with text as seconds": event("stage", left="Training", seconds="1"),
    "validation without values": event("validation"),
    "validation with lists": event("validation", when=[], num_samples=1, num_failed=0),
    "checkpoint without path": event("checkpoint", seconds=1.0),
    "failed step without calls": event("failed_step"),
    **{f"history: {name}": special(HISTORY, make) for name, make in SPECIAL_FILES.items()},
}
SURVIVED: dict[str, Make] = {
    "NaN and infinity": history(
        '{"step": 2, "reward_mean": NaN, "kl": Infinity, "grad_norm": 1e999}'
    ),
    "smallest and largest numbers": history(
        '{"step": 2, "mismatch_mean": 1e-320, "mismatch_max": 1e308, "kl": -1e308}'
    ),
    "distant steps": history({"step": 2**52, "loss": 1.0, "reward_mean": -1e99}),
    "negative durations": step(step_seconds=-1.0, seconds={"train": -5.0}),
    "no values": history({"step": 2}),
    "many attempts and stages": history(
        *({"event": "stage", "attempt": i, "left": f"s{i}", "seconds": 1} for i in range(3000))
    ),
    "control characters and markup": event("stage", left="<script>\x1b]0;x\x07", seconds=1.0),
    "attempt without a number": lambda folder: (log_dir_of(folder) / "attempts/x").mkdir(
        parents=True
    ),
    **{
        f"log: {name}": special("checkpoints/logs/attempts/1/driver.log", make)
        for name, make in SPECIAL_FILES.items()
        if name != "link out of the folder"
    },
    **{f"lock: {name}": special("lock", make) for name, make in SPECIAL_FILES.items()},
}
REJECTED: dict[str, Make] = {
    "state: empty": state(""),
    "state: array": state("[]"),
    "state: number": state("7"),
    "state: deep": state("[" * 100_000),
    "state: not UTF-8": state(b'{"uid": "\xff"}'),
    "state: wrong types": state('{"uid": [], "mounts": 5, "status": {}}'),
    "state: other folder": state('{"temp_dir": {"a": 1}, "status": {}}'),
    "state: unknown field": state('{"nothing": 1, "status": []}'),
    "state: duplicate key": state('{"uid": "a", "uid": "b", "status": {}}'),
    **{f"state: {name}": special("state.json", make) for name, make in SPECIAL_FILES.items()},
    **{f"job: {name}": special("job.yaml", make) for name, make in SPECIAL_FILES.items()},
    "job: not UTF-8": lambda folder: (folder / "job.yaml").write_bytes(b"a: \xff"),
    "job: deep": lambda folder: (folder / "job.yaml").write_text("[" * 10_000),
}  # fmt: skip
ALL = {**COUNTED, **SURVIVED, **REJECTED}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The output of the commands for each case, and the report."""
    folders = {}
    for name, make in ALL.items():
        folder = make_job_folder(tmp_path_factory.mktemp("case") / "job", JobStatus())
        write_steps(log_dir_of(folder), 1, [1])
        make(folder)
        folders[name] = folder
    by_path = outcomes("history", list(folders.values()))
    reports = {name: folder / "report.html" for name, folder in folders.items()}
    return {
        name: by_path[str(folder)] + (reports[name].read_text() if reports[name].exists() else "")
        for name, folder in folders.items()
    }


@pytest.mark.parametrize("name", [*COUNTED, *SURVIVED])
def test_hostile_history_gives_a_report(shown: dict[str, str], name: str) -> None:
    assert "report --dir: 0" in shown[name], shown[name][-2000:]
    assert "</html>" in shown[name]
    assert "<script>" not in shown[name]
    assert SECRET not in shown[name]


@pytest.mark.parametrize("name", COUNTED)
def test_report_counts_lines_that_it_leaves_out(shown: dict[str, str], name: str) -> None:
    assert "of the history cannot be used: metrics.e2.jsonl" in shown[name]


@pytest.mark.parametrize("name", REJECTED)
def test_hostile_state_is_rejected_with_reason(shown: dict[str, str], name: str) -> None:
    assert "report --dir: 2" in shown[name], shown[name][-2000:]
    assert SECRET not in shown[name]


def test_usable_values_of_a_partly_unusable_line_are_kept(tmp_path: Path) -> None:
    record = {**VALID, "reward_mean": 0.5, "kl": "x", "attempt": 1, "epoch": 1}
    history_file(tmp_path, 1).write_text(json.dumps(record) + "\n")

    read = read_records(tmp_path)

    assert [each.get("reward_mean") for each in read.steps] == [0.5]
    assert "kl" not in read.steps[0]
    assert read.problem == (
        "1 line or file of the history cannot be used: metrics.e1.jsonl, line 1: unusable values "
        "of 'kl'"
    )


def test_history_without_bad_lines_has_no_problem(tmp_path: Path) -> None:
    assert read_records(tmp_path) == History()

"""Histories and states made to break the commands that read a job folder."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.history import History, history_file, read_records
from raggrpo_cli.main import app
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


def status(**values: object) -> Make:
    def write(folder: Path) -> None:
        saved = json.loads((folder / "state.json").read_text())
        saved["status"] |= values
        (folder / "state.json").write_text(json.dumps(saved))

    return write


def temp_dir(text: str) -> Make:
    def write(folder: Path) -> None:
        saved = json.loads((folder / "state.json").read_text())
        (folder / "state.json").write_text(json.dumps({**saved, "temp_dir": text}))

    return write


def own_link(make: Make) -> Make:
    """Return a function that adds two attempts and a folder with their files outside."""

    def write(folder: Path) -> None:
        saved = json.loads((folder / "state.json").read_text())
        saved["status"] |= {"attempt": 2, "attempts": [{"number": 2}, {"number": 1}]}
        (folder / "state.json").write_text(json.dumps(saved))
        outside = folder.parent / "outside"
        for attempt in (attempt_dir(folder, 1), attempt_dir(folder, 2), outside):
            attempt.mkdir(parents=True)
            (attempt / "driver.log").write_text(f"{SECRET if attempt == outside else ''}\n")
            config = {"rollout": {"n": SECRET if attempt == outside else 4}}
            (attempt / "config.json").write_text(json.dumps(config))
        (outside / "driver-2.log").write_text(SECRET)
        make(folder)

    return write


def attempt_dir(folder: Path, number: int) -> Path:
    return log_dir_of(folder) / "attempts" / str(number)


def link(path: str, target: str) -> Make:
    """Return a function that replaces a path in the log folder by a link to one outside."""

    def write(folder: Path) -> None:
        old = log_dir_of(folder) / path
        old.rename(old.with_name("old"))
        old.symlink_to(folder.parent / "outside" / target)

    return write


def linked_temp_dir(folder: Path) -> None:
    (folder / "temp").mkdir()
    (folder / "temp/driver-2.log").symlink_to(folder.parent / "outside/driver-2.log")
    temp_dir(str(folder / "temp"))(folder)


def long_log(content: bytes) -> Make:
    def write(folder: Path) -> None:
        attempt_dir(folder, 1).mkdir(parents=True)
        (attempt_dir(folder, 1) / "driver.log").write_bytes(content)

    return write


def large_line(folder: Path) -> None:
    with history_file(log_dir_of(folder), 2).open("ab") as file:
        file.truncate(5 << 30)  # sparse: it takes no space on the disk


def calls(number: int) -> dict[str, object]:
    failures = {f"{number}.{each}": 1 for each in range(256)}
    return {"answered": 1, "failures": failures, "p50": 1, "p95": 2}


HISTORY = "checkpoints/logs/metrics.e2.jsonl"
COUNTED: dict[str, Make] = {
    "not JSON": history("{", "[", "nothing"),
    "not objects": history("[]", "1", "null", '"x"'),
    "deep nesting": history("[" * 100_000),
    "events of many values": history(
        *['{"event": "a", "step": 1, "x": [' + "{}," * 300_000 + "{}]}"] * 50
    ),
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
    "lone surrogates": history(
        {**VALID, "reward_parts": {"\ud800": 1.0, "b": 1.0}},
        {"event": "stage", "left": "\ud800", "seconds": 1.0},
        {"event": "checkpoint", "step": 1, "path": "\udc80", "seconds": 1.0},
    ),
    "many names of failures": history(
        *({"step": i, "epoch": i, "retrieval": {"rag": calls(i)}} for i in range(3000))
    ),
    "stage of another release": status(phase="Starting", progress={"stage": "Dreaming"}),
    "temporary folder with a long name": temp_dir("/" + "x" * 5000),
    "temporary folder with NUL": temp_dir("/a\0b"),
    "log of one long line": long_log(b"a" * (2 << 20)),
    "log of empty lines": long_log(b"\n" * (64 << 20)),
    "names of attempts that are not canonical": lambda folder: [
        (log_dir_of(folder) / "attempts" / name).mkdir(parents=True)
        for name in ("01", "٣", "-1", "1e3", "9" * 250)
    ],
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
    "state: lone surrogate": status(
        conditions=[{"type": "Failed", "status": "True", "reason": "\ud800", "message": "\ud800"}]
    ),
    "state: temporary folder with a lone surrogate": temp_dir("/\ud800"),
    "state: step with 400 digits": status(attempts=[{"number": 1, "fromStep": 10**400}]),
    "state: steps with 4,300 digits": status(attempts=[{"number": 1, "lostSteps": 10**4299}] * 10),
    "state: text of 12 MB": status(
        conditions=[{"type": "Failed", "status": "True", "reason": "x" * 12_000_000}]
    ),
    "state: many causes": status(restarts={"byCause": {f"c{i}": i for i in range(700_000)}}),
    **{f"state: {name}": special("state.json", make) for name, make in SPECIAL_FILES.items()},
    **{f"job: {name}": special("job.yaml", make) for name, make in SPECIAL_FILES.items()},
    "job: not UTF-8": lambda folder: (folder / "job.yaml").write_bytes(b"a: \xff"),
    "job: deep": lambda folder: (folder / "job.yaml").write_text("[" * 10_000),
}  # fmt: skip
LINKED: dict[str, Make] = {
    "log of an attempt": own_link(link("attempts/2/driver.log", "driver.log")),
    "configuration of an attempt": own_link(link("attempts/2/config.json", "config.json")),
    "folder of an attempt": own_link(link("attempts/2", ".")),
    "folder of all attempts": own_link(
        lambda folder: [
            link("attempts", "logs")(folder),
            (folder.parent / "outside/logs").mkdir(),
            (folder.parent / "outside/logs/2").symlink_to(folder.parent / "outside"),
            (folder.parent / "outside/logs/1").symlink_to(folder.parent / "outside"),
        ]
    ),
    "log in the temporary folder": own_link(linked_temp_dir),
}
ALL = {**COUNTED, **SURVIVED, **REJECTED, **LINKED}


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


@pytest.mark.parametrize("name", [*COUNTED, *SURVIVED, *LINKED])
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


@pytest.mark.parametrize("name", ["report.html", "report.html.tmp"])
def test_folder_at_the_path_of_the_report_is_reported(name: str, tmp_path: Path) -> None:
    folder = make_job_folder(tmp_path / "job", JobStatus())
    (folder / name).mkdir()

    result = CliRunner().invoke(app, ["report", "--dir", str(folder)])

    assert result.exit_code == 1
    assert f"{folder / 'report.html'} cannot be written" in result.output


@pytest.mark.parametrize("path", ["/" + "x" * 5000, "/a\0b", "/\udc80", "job@" + "9" * 5000])
@pytest.mark.parametrize("command", ["report --dir", "status", "logs", "compare", "diff"])
def test_invalid_path_is_reported(command: str, path: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), path])

    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 2


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

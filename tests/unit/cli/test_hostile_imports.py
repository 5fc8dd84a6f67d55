"""Configurations made to exhaust memory, to hang or to read files elsewhere."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.hostile.configurations import CONFIGURATIONS, FOLDERS, JOBS
from support.hostile.configurations import SCRIPTS as MORE_SCRIPTS
from support.hostile.limited_process import outcomes

MAX_MEMORY = 1 << 30
RUN = "python3 -m verl.trainer.main_ppo data.train_batch_size=8"


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


def import_in_process(config: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Import with at most MAX_MEMORY bytes; the time limit detects a hang."""
    command = [sys.executable, "-m", "raggrpo_cli.main", "import", "verl", str(config), *options]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=limit_memory,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def doubled(statement: str, count: int = 40) -> str:
    return "\n".join(["A=aaaaaaaa", *[statement] * count, f"{RUN} data.seed=$A"])


def yaml_bomb(levels: int = 12) -> str:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join([*rows, f"data: {{train_files: *a{levels - 1}}}"])


def mapping_bomb(levels: int = 24) -> str:
    rows = ["a0: &a0 {x: 1, y: 2}"]
    rows += [f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}" for i in range(1, levels)]
    return "\n".join(rows)


SCRIPTS = {
    "doubling text": doubled("A=$A$A"),
    "doubling appended text": doubled("A+=$A"),
    "doubling array": "\n".join(
        ["A=(a b c d)", *['A=("${A[@]}" "${A[@]}")'] * 40, f"{RUN} " + '"${A[@]}"']
    ),
    "doubling appended array": "\n".join(["A=(a b)", *['A+=("${A[@]}")'] * 40, RUN]),
    "large array used often": "\n".join(
        [f"A=({'a ' * 50_000})", f"{RUN} " + " ".join(["${A[@]}"] * 50_000)]
    ),
    "nested defaults": f"{RUN} data.seed=" + "${A:-" * 20_000 + "}" * 20_000,
    "nested commands": f"{RUN} data.seed=" + "$(" * 50_000 + ")" * 50_000,
    "long arithmetic": "\n".join(["A=" + "(" * 5000 + "1" + ")" * 5000, f"{RUN} data.seed=$((A))"]),
    "large product": f"{RUN} data.seed=$(({'*'.join(['9' * 20] * 9)}))",
    "many branches": "\n".join(
        [*[f"A{i}=1" for i in range(10_000)], *["if x; then B=1; fi"] * 10_000, RUN]
    ),
    "unclosed quote": f"{RUN} data.seed='",
    "no end": "A=" + "'" * 1_000_001,
}
CONFIGS = {
    "lists": yaml_bomb(),
    "mappings": mapping_bomb(),
    "deep nesting": "[" * 100_000,
    "deep flow mappings": "{a: " * 5000 + "1" + "}" * 5000,
    "circular alias": "a: &a {b: *a}",
    "circular list": "data: &a {train_files: [*a]}",
    "doubling references": "\n".join(
        ["data:", "  x0: aaaaaaaa", *[f"  x{i}: ${{data.x{i - 1}}}${{data.x{i - 1}}}"
         for i in range(1, 60)]]
    ),
    "long chain of references": "\n".join(
        ["data:", "  x0: 1", *[f"  x{i}: ${{data.x{i - 1}}}" for i in range(1, 9000)]]
    ),
    "nested references": "data: {seed: '" + "${" * 50_000 + "}" * 50_000 + "'}",
    "values of the wrong kind": "data: [1]\nactor_rollout_ref: 3\ntrainer: {nnodes: {a: 1}}",
    "huge integers": f"trainer: {{nnodes: {'9' * 5000}}}",
    "impossible date": "trainer: {experiment_name: 2026-99-99}",
    "too large": "# " + "x" * (1 << 20),
}  # fmt: skip


def assert_handled(done: "subprocess.CompletedProcess[str]") -> None:
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    assert "MemoryError" not in done.stderr
    assert done.returncode in (0, 2), (done.returncode, done.stderr[-500:])
    assert len(done.stdout) + len(done.stderr) < 4_000_000


@pytest.mark.parametrize("content", SCRIPTS.values(), ids=SCRIPTS)
def test_hostile_script_is_imported_or_rejected_within_limits(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.sh").write_text(content)
    assert_handled(import_in_process(tmp_path / "run.sh"))


@pytest.mark.parametrize("content", CONFIGS.values(), ids=CONFIGS)
def test_hostile_configuration_is_imported_or_rejected_within_limits(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "config.yaml").write_text(content)
    assert_handled(import_in_process(tmp_path / "config.yaml"))


def test_doubling_defaults_are_rejected(tmp_path: Path) -> None:
    for i in range(40):
        text = f"defaults: [f{i + 1}@a, f{i + 1}@b]\nx{i}: 1\n"
        (tmp_path / f"f{i}.yaml").write_text(text)
    (tmp_path / "f40.yaml").write_text("x: 1")

    done = import_in_process(tmp_path / "f0.yaml")

    assert_handled(done)
    assert "its defaults include more than 200 files" in done.stderr


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_special_file_is_not_read_as_configuration(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    config = tmp_path / "config.yaml"
    make(config)
    done = import_in_process(config)
    assert done.returncode == 2
    assert "it is not a regular file" in done.stderr


@pytest.mark.parametrize(
    "name", ["../outside", "/../{folder}/outside", "{folder}/outside", "link/outside"]
)
def test_file_outside_folders_of_configuration_is_not_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside.yaml").write_text("data: {seed: 4711}")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path)
    folder = str(tmp_path).lstrip("/") if name.startswith("/..") else str(tmp_path)
    config_name = name.format(folder=folder)
    (inside / "run.sh").write_text(f"{RUN} --config-path={inside} --config-name={config_name}")

    done = import_in_process(inside / "run.sh")

    assert_handled(done)
    assert "4711" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "contents"),
    [("run.sh", MORE_SCRIPTS), ("config.yaml", CONFIGURATIONS), ("job.yaml", JOBS)],
)
def test_hostile_texts_are_read_within_limits(
    tmp_path: Path, name: str, contents: dict[str, str]
) -> None:
    paths = [tmp_path / each / name for each in contents]
    for path in paths:
        path.parent.mkdir()
        path.write_text(contents[path.parent.name])
    assert_all_handled(paths)


def test_hostile_folders_are_imported_or_rejected_within_limits(tmp_path: Path) -> None:
    paths = [tmp_path / make.__name__ / "config.yaml" for make in FOLDERS]
    for make, path in zip(FOLDERS, paths, strict=True):
        path.parent.mkdir()
        make(path.parent)
    assert_all_handled(paths)


def assert_all_handled(paths: list[Path]) -> None:
    for path, outcome in outcomes("imported", paths).items():
        assert outcome.startswith(("0 ", "2 ")), (path, outcome[-2000:])
        assert len(outcome) < 4_000_000, path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.sh", f"export HF_TOKEN={{0}}\n{RUN} trainer.experiment_name=$HF_TOKEN"),
        ("run.sh", f"export WANDB_API_KEY={{1}}\n{RUN} trainer.experiment_name=$WANDB_API_KEY"),
        ("run.sh", f"export MY_SECRET={{1}}\n{RUN} trainer.project_name=${{{{MY_SECRET:-x}}}}"),
        ("run.sh", f"NAME={{0}}\n{RUN} trainer.experiment_name=$NAME data.x.y=$NAME"),
        ("run.sh", f"NAME={{0}}\nif a; then NAME=b; fi\n{RUN} trainer.experiment_name=$NAME"),
        ("config.yaml", "trainer: {{experiment_name: {0}, other: [{{a: {0}}}]}}\n"),
        ("config.yaml", "data: {{train_files: {0}, other: {0}}}\n"),
    ],
)
def test_secret_is_neither_in_the_job_nor_in_the_report(
    tmp_path: Path, name: str, content: str
) -> None:
    secrets = ("hf_abcdefghijklmnopqrstuvwxyz012345", "0123456789abcdef0123456789abcdef01234567")
    (tmp_path / name).write_text(content.format(*secrets))

    done = import_in_process(tmp_path / name)

    assert_handled(done)
    shown = (done.stdout + done.stderr).lower().replace("-", "_")
    assert not any(each in shown for each in secrets)
    assert "looks like a secret" in shown or "(hidden)" in shown


def test_job_is_not_written_to_pipe_without_reader(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("data: {seed: 1}\n")
    os.mkfifo(tmp_path / "pipe")
    done = import_in_process(tmp_path / "config.yaml", "--output", str(tmp_path / "pipe"))
    assert done.returncode == 2
    assert "cannot be written" in done.stderr

"""Evaluation of shell scripts; values known only at run time are unknown."""

from typing import Any

import pytest

from raggrpo_operator.core.importing.script import read_script
from raggrpo_operator.core.importing.translation import Imported
from raggrpo_operator.core.importing.verl import import_verl

RUN = "python3 -m verl.trainer.main_ppo "
SMALLEST = (
    "data.train_files=/d/a.parquet actor_rollout_ref.model.path=/m actor_rollout_ref.rollout.n=4 "
    "trainer.total_epochs=1 "
)


def imported(script: str) -> Imported:
    read = read_script(script)
    return import_verl(read.overrides, missing=read.missing)


def given(script: str) -> dict[str, Any]:
    return read_script(script).overrides


@pytest.mark.row("D5")
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("M=${M:-/models/first}\nM=/models/second", "/models/second"),
        ("M=/models/a\nM=$M/b", "/models/a/b"),
        ('export M="${ROOT:-/models}/a"', "/models/a"),
        ('M=${M:-"${ROOT:-/models}/a b"}', "/models/a b"),
        (": ${M:=/models/a}", "/models/a"),
        ("M=/a\nM=/b echo", "/a"),
        ("M=/a\n( M=/b )", "/a"),
        ("M=/a\nunset N\nif true; then M=/a; fi", "/a"),
        ("M=/a\nunset M\nM=${M:-/b}", "/b"),
        ("M=/a\ncase $X in *) unset M;; esac\nM=${M:-/b}", "/b"),
        ("M=/a\n'M=/b'\n$'M=/b'", "/a"),
        ("M=/a\n(\nf() { echo; }\nM=/b\n)", "/a"),
        ("if x; then M=/a; else M=/a; fi", "/a"),
        ("M='$not/a/variable'", "$not/a/variable"),
        ("M=$'/a'\n", "/a"),
        ("R=/r\nM=${R:+/a}${S:+/b}", "/a"),
        (r"M=/a\ \$b\"", '/a $b"'),
        ("M=/a$/b", "/a$/b"),
        ("M=\"/a$'b'\"", "/a$'b'"),
        ('M="${R:-/it\'s}"', "/it's"),
        ("M=${R:-'/a}b'}", "/a}b"),
        (r"M=${R:-/a\}}", "/a}"),
        ("M=${R:-/a''}", "/a"),
        ('M=${R:-"/a}b"}', "/a}b"),
        (r'M="/a\$b\"c\\d\`e\f' + '\\\ng"', r'/a$b"c\d`e\fg'),
    ],
)
def test_last_assignment_before_command_is_used(script: str, expected: str) -> None:
    after = "\nM=/later"
    assert given(f'{script}\n{RUN} data.path="$M"{after}') == {"data.path": expected}


@pytest.mark.parametrize(
    ("script", "values"),
    [
        ("BS=128\nif [ $1 = big ]; then BS=512; fi", "$BS is 128 or 512"),
        ("if x; then BS=1; elif y; then BS=2; else BS=3; fi", "$BS is 1, 2 or 3"),
        ("if x; then BS=1; fi", "$BS is unset or 1"),
        ("BS=1\nif x; then if y; then BS=2; else BS=3; fi; fi", "$BS is 1, 2 or 3"),
        ("BS=1\ncase $X in\n  a|b) BS=2 ;;\n  c)\n BS=3\n;;\nesac", "$BS is 1, 2 or 3"),
        ("case $X in (a) BS=2;; *) BS=3; esac", "$BS is 2 or 3"),
        ("BS=1\ncase $X in \\*) BS=2;; esac", "$BS is 1 or 2"),
        ("BS=1\n[ -z $X ] && BS=2", "$BS is 1 or 2"),
        ("BS=1\nif [[ $X == 'a' ]]; then BS=2; fi", "$BS is 1 or 2"),
        ("BS=1\nwhile x; do BS=2; done", "$BS is 1 or 2"),
        ("for BS in 1 2; do echo; done", "$BS is 1 or 2"),
        ("for N in 1 2; do if x; then BS=1; else BS=2; fi; done", "$BS is 1 or 2"),
        ("for N in 1 2; do\ncase $X in a) BS=2;; *) BS=3;; esac done", "$BS is 2 or 3"),
        ("BS=1\nif x; then\ncase $X in a) BS=2;; b) BS=3;; esac fi", "$BS is 1, 2 or 3"),
        (f"BS={'a' * 60}\nif x; then BS={'b' * 61}; fi", f"$BS is {'a' * 60} or {'b' * 60}…"),
    ],
)
def test_branch_dependent_variable_is_reported_with_possible_values(
    script: str, values: str
) -> None:
    job = imported(f"{script}\n{RUN} {SMALLEST} data.train_batch_size=$BS")
    assert job.missing == [
        f"data.train_batch_size=$BS: {values}, depending on how the script runs: override it"
    ]
    assert "trainBatchSize" not in job.job["spec"]["data"]


@pytest.mark.row("D5")
@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("data.train_files=$D/a.parquet", "$D is not set in the script"),
        ("actor_rollout_ref.rollout.n=${N}", "${N} is not set in the script"),
        ("actor_rollout_ref.rollout.n=$1", "$1 is an argument of the script"),
        ("actor_rollout_ref.actor.use_kl_loss=$KL", "$KL is not set in the script"),
        ("actor_rollout_ref.actor.optim.lr=$(cat lr)", "$(cat lr) is the output of a command"),
        ("data.max_response_length=${L%k}", "${L%k} is not supported"),
        ("data.max_prompt_length=$((X * 2))", "$X is not set in the script"),
        ("trainer.default_local_dir=/c/$D", "$D is not set in the script"),
        ("actor_rollout_ref.model.path=`cat m`", "`cat m` is the output of a command"),
    ],
)
def test_unknown_script_values_are_reported_and_omitted(word: str, expected: str) -> None:
    job = imported(f"{RUN} {SMALLEST} {word}")
    name = word.partition("=")[0]
    [line] = [each for each in job.missing if each.startswith(word)]
    assert expected in line
    assert not any(each.startswith(f"{name} →") for each in job.mapped)
    assert not any(each.startswith(name) for each in [*job.wrong, *job.unmapped])


def test_job_name_defaults_when_experiment_name_is_unknown() -> None:
    job = imported(f'E="run-$(date +%F)"\n{RUN} {SMALLEST} trainer.experiment_name=$E')
    assert job.job["metadata"]["name"] == "verl-import"
    assert job.job["spec"]["checkpoint"]["path"].endswith("/checkpoints/verl_examples/verl-import")
    assert "$(date +%F) is the output of a command" in job.missing[0]


def test_unknown_value_of_unmapped_field_is_not_reported_as_error() -> None:
    job = imported(f"{RUN} {SMALLEST} critic.optim.lr=$LR trainer.odd=$(date)")
    assert job.missing == []
    assert "critic.optim.lr=$LR: GRPO has no critic" in job.unmapped
    assert "trainer.odd=$(date): no counterpart" in job.unmapped


def test_checkpoint_path_omits_unknown_project_name() -> None:
    job = imported(f"{RUN} {SMALLEST} trainer.project_name=$(date) trainer.experiment_name=e")
    assert job.job["spec"]["checkpoint"]["path"].endswith("/checkpoints/e")


def test_unknown_numbers_do_not_fall_back_to_verl_defaults() -> None:
    job = imported(
        f"{RUN} data.train_batch_size=$B actor_rollout_ref.rollout.n=$N data.max_prompt_length=$P "
        "actor_rollout_ref.actor.ppo_mini_batch_size=4096 data.train_files=$F "
        "actor_rollout_ref.rollout.max_num_batched_tokens=64 actor_rollout_ref.model.path=$M "
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=128 trainer.save_freq=$S"
    )
    assert not any("4096" in line or "group" in line or "128" in line for line in job.wrong)
    assert len(job.missing) == 6

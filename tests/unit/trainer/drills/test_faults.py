import inspect
import re

import pytest

from raggrpo_trainer.checkpoint.store import SavePhase
from raggrpo_trainer.drills import drill
from raggrpo_trainer.drills import faults as grammar
from raggrpo_trainer.drills.faults import PHASES, TRIGGERS, Faults


def make_faults(text: str, attempt: int = 1) -> Faults:
    return Faults.from_env({"RAGGRPO_FAULT": text}, attempt)


def test_fault_triggers_once_at_its_step() -> None:
    faults = make_faults("kill-rank@step=5; nan@step=5")

    assert faults.take_due("kill-rank", step=4) == ""
    assert faults.take_due("kill-driver", step=5) == ""
    assert faults.take_due("kill-rank", step=5) == "kill-rank"
    assert faults.take_due("kill-rank", step=5) == ""
    assert faults.take_due("nan", step=5) == "nan"


def test_save_fault_triggers_at_its_phase() -> None:
    faults = make_faults("kill-driver@save=10:complete,kill-rank@save=10")
    assert faults.take_due("kill-driver", step=10) == ""
    assert faults.take_due("kill-driver", save=10, phase="shards") == ""
    assert faults.take_due("kill-driver", save=10, phase="complete") == "kill-driver"
    assert faults.take_due("kill-rank", save=10, phase="shards") == "kill-rank"


def test_fault_argument_is_parsed_after_trigger() -> None:
    faults = make_faults("slow-step@step=9:2.5,pause@save=6:complete:4")
    assert faults.take_due("slow-step", step=9) == "2.5"
    assert faults.take_due("pause", save=6, phase="complete") == "4"


@pytest.mark.parametrize(("attempt", "due"), [(1, "ac"), (2, "bc"), (3, "c")])
def test_fault_triggers_only_in_its_attempt(attempt: int, due: str) -> None:
    text = "slow-step@step=1:a,slow-step@step=2:b@attempt=2,slow-step@step=3:c@attempt=0"
    faults = make_faults(text, attempt)
    assert "".join(faults.take_due("slow-step", step=step) for step in (1, 2, 3)) == due


def test_start_fault_does_not_need_step() -> None:
    assert make_faults("wrong-resume@attempt=2", 2).take_due("wrong-resume") == "wrong-resume"
    assert make_faults("wrong-resume@attempt=2", 1).take_due("wrong-resume") == ""


def test_faults_are_empty_without_environment_variable() -> None:
    assert Faults.from_env({}, 1).take_due("nan", step=1) == ""
    assert make_faults(" , ;").take_due("nan", step=1) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "nan@step=1,kil-rank@step=5",
            r"'kil-rank@step=5': unknown fault; choose from kill-driver,",
        ),
        ("kill-rank@step=x", r"'kill-rank@step=x': expected name@step=7, "),
        ("kill-rank@epoch=3", r"'kill-rank@epoch=3': expected name@step=7, "),
        ("kill-rank", r"'kill-rank': kill-rank must have @save= or @step="),
        ("nan@save=4", r"'nan@save=4': nan must have @step="),
        ("wrong-resume@step=4", r"wrong-resume must have no trigger"),
        ("pause@save=4:end:3", r"unknown phase; choose from shards, complete, retention"),
    ],
)
def test_invalid_fault_is_rejected_with_expected_format(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"^RAGGRPO_FAULT: .*{words}"):
        make_faults(text)


def test_fault_phases_match_save_phases() -> None:
    assert tuple(SavePhase) == PHASES


def test_faults_are_all_documented() -> None:
    for name in TRIGGERS:
        assert name in str(grammar.__doc__)


@pytest.mark.row("B29")
def test_faults_are_all_injected_by_drill() -> None:
    code = inspect.getsource(drill)
    names = set(re.findall(r'due\(f?"([\w{}-]+)"', code))
    victims = {"driver", "rank", "engine"}
    injected = {each.replace("{victim}", victim) for each in names for victim in victims}
    assert set(TRIGGERS) <= injected

import re
from pathlib import Path

from raggrpo_api.status.cause import Cause
from raggrpo_operator.core.lifecycle.failures import CAUSE_OF_EXIT, POLICIES, Restart

PAGE = Path(__file__).parents[4] / "docs" / "guides" / "recover-a-job.md"
ROWS = {
    cells[0].strip("`"): cells[1:]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| `") and (cells := [cell.strip() for cell in line.strip("|").split("|")])
}
WORDS = {Restart.WARM: "warm", Restart.NEW: "new cluster", Restart.NEVER: "failed"}


def test_every_cause_has_its_row_with_a_remedy() -> None:
    assert set(ROWS) == {str(cause) for cause in Cause if cause is not Cause.SUCCEEDED}
    assert all(len(cells) == 4 and cells[3].endswith(".") for cells in ROWS.values())


def test_rows_say_what_the_policies_do() -> None:
    told = {name: (cells[1], cells[2]) for name, cells in ROWS.items()}

    assert told == {name: _policy(Cause(name)) for name in ROWS}


def test_rows_name_every_exit_code() -> None:
    told = {
        int(code): Cause(name)
        for name, (evidence, *_) in ROWS.items()
        for code in re.findall(r"exit code (\d+)", evidence)
    }

    assert told == {**CAUSE_OF_EXIT, 0: Cause.FALSE_SUCCESS}


def _policy(cause: Cause) -> tuple[str, str]:
    policy = POLICIES[cause]
    if policy.restart is Restart.NEVER:
        return "failed", "–"
    return WORDS[policy.restart], "yes" if policy.is_counted else "no"

"""Inputs that broke other trainers, services and operators, with the behavior that is correct."""

from importlib import import_module
from pathlib import Path

import pytest

from support.reported_cases.case import CASES, ReportedCase

FOLDER = Path(__file__).parents[1] / "support" / "reported_cases"
for module in sorted(FOLDER.glob("*.py")):
    import_module(f"support.reported_cases.{module.stem}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("reported", CASES, ids=lambda each: f"{each.id}: {each.fault}")
def test_reported_case_behaves_as_specified(reported: ReportedCase, tmp_path: Path) -> None:
    reported.check(tmp_path)

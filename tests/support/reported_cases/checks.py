"""Run preflight for reported cases, and assert the outcome of a check."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raggrpo_api.trainer.preflight import CheckId, CheckState, PreflightResult
from raggrpo_trainer.preflight.run import run_checks
from support.builders.trainer.preflight import check_of, make_fit_config


def preflight(folder: Path, changes: Mapping[str, Any] | None = None) -> PreflightResult:
    return asyncio.run(run_checks(make_fit_config(folder, changes), {}))


def expect(result: PreflightResult, check: CheckId, state: CheckState, *words: str) -> None:
    """Assert a check's state and that its evidence contains all words."""
    observed = check_of(result, check)
    assert observed.state is state, observed.evidence
    assert [word for word in words if word not in observed.evidence] == [], observed.evidence

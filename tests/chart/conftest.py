"""Fixtures of the chart's tier: Helm, built from its Go module once for each version."""

from pathlib import Path

import pytest

from support.kubernetes.helm_chart import Chart
from tools.kind.go_programs import tool_folder


@pytest.fixture(scope="session")
def chart() -> Chart:
    """The chart as this repository's Helm renders it."""
    return Chart(helm=tool_folder("helm") / "helm", folder=Path("helm/raggrpo-operator").resolve())

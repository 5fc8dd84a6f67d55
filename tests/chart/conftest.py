"""Fixtures of the chart tests; Helm is built from its Go module once per version."""

from pathlib import Path

import pytest

from support.kubernetes.helm_chart import Chart
from tools.kind.go_programs import tool_folder


@pytest.fixture(scope="session")
def chart() -> Chart:
    """The chart, rendered by Helm."""
    return Chart(helm=tool_folder("helm") / "helm", folder=Path("helm/raggrpo-operator").resolve())

"""Fixtures of the chart's tier: Helm, built from its Go module once for each version."""

from pathlib import Path

import pytest

from cluster.tools import tool_folder
from helm_chart import Chart


@pytest.fixture(scope="session")
def chart() -> Chart:
    """The chart as this repository's Helm renders it."""
    return Chart(helm=tool_folder("helm") / "helm", folder=Path("helm/raggrpo-operator").resolve())

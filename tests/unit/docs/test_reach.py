"""Pages that say which variables `jobPolicy.allowedEndpoints` restricts."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
POLICY = REPOSITORY / "helm/raggrpo-operator/templates/policies/jobs.yaml"


def restricted_places() -> list[str]:
    """Return the lists of variables in the policy, such as spec.env."""
    [places] = re.findall(r"\$env := dict (.*) }}", POLICY.read_text())
    return re.findall(r'"(spec\.[^"]*)"', places)


@pytest.mark.parametrize(
    ("page", "prefix"),
    [("reference/reach.md", "spec."), ("guides/run-several-tenants.md", "")],
)
def test_page_names_the_lists_of_variables_that_the_policy_restricts(
    page: str, prefix: str
) -> None:
    text = (REPOSITORY / "docs" / page).read_text()
    [rule] = re.findall(r"variables in [^,(]*", text)
    places = restricted_places()
    assert len(places) > 1
    for place in places:
        assert f"`{prefix}{place.removeprefix('spec.')}`" in rule

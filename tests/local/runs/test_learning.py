"""Learning of the quickstart model in real runs, on policy and one step off policy."""

import pytest

from bench.training.quickstart_learning import has_learned, run, standard_error

ONE_STEP_OFF = (
    "resources.placement=Disaggregated",
    "resources.rolloutEngines=2",
    "training.offPolicySteps=1",
)
APART = 0.1
"""Maximum difference of mean rewards over 32 steps; seeds differ by 0.09 in either mode."""
pytestmark = pytest.mark.long


@pytest.mark.row("B32")
@pytest.mark.timeout(3600)  # each run takes 2 minutes on an idle machine, 8 on a busy one
def test_exact_match_rises_on_policy_and_one_step_off_policy() -> None:
    on_policy, off = run(0), run(0, ONE_STEP_OFF)

    assert has_learned(on_policy)
    assert has_learned(off)
    after = [each["exactMatchAfter"] for each in (on_policy, off)]
    assert abs(after[0] - after[1]) <= 3 * standard_error(after)
    curves = zip(on_policy["rewardCurve"], off["rewardCurve"], strict=True)
    assert max(abs(one - other) for one, other in curves) <= APART

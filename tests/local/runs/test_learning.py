"""What the quickstart's model learns, in real runs: from its passages, and one step off as well."""

import pytest

from bench.training.quickstart_learning import learnt, run, standard_error

ONE_STEP_OFF = (
    "resources.placement=Disaggregated",
    "resources.rolloutEngines=2",
    "training.offPolicySteps=1",
)
APART = 0.1
"""Most between mean rewards of 32 steps: seeds of either way differ by as much, 0.09."""
pytestmark = pytest.mark.long


@pytest.mark.row("B32")
@pytest.mark.timeout(3600)  # each run takes 2 minutes alone, and beside other work 8
def test_exact_match_rises_by_a_quarter_and_one_step_off_the_policy_alike() -> None:
    on_policy, off = run(0), run(0, ONE_STEP_OFF)

    assert learnt(on_policy)
    assert learnt(off)
    after = [each["exactMatchAfter"] for each in (on_policy, off)]
    assert abs(after[0] - after[1]) <= 3 * standard_error(after)
    curves = zip(on_policy["rewardCurve"], off["rewardCurve"], strict=True)
    assert max(abs(one - other) for one, other in curves) <= APART

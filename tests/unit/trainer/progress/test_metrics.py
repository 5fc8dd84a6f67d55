from dataclasses import fields

from raggrpo_trainer.exchange.sample_metrics import SampleMetrics
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.progress.metrics import PROBE_METRICS, STEP_METRICS

NOT_SCALARS = {"reward_parts", "non_finite", "examples"}
RATES = {"samples_per_second", "tokens_per_second"}


def test_metrics_table_covers_all_reported_fields() -> None:
    reported = {each.name for source in (SampleMetrics, StepMetrics) for each in fields(source)}
    assert reported - NOT_SCALARS <= STEP_METRICS.keys() | PROBE_METRICS.keys()
    assert STEP_METRICS.keys() <= reported | RATES

"""The page of metrics that a trainer serves."""

from collections.abc import Mapping

from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_trainer.call_failures import FailureCause
from raggrpo_trainer.http.call_statistics import CallSummary
from raggrpo_trainer.progress.metric_sinks import PrometheusText
from support.builders.trainer.reports import make_step


def trainer_page(endpoints: int = 1, probed: Mapping[str, float] | None = None) -> bytes:
    """Return the metrics of a trainer whose calls to all endpoints failed for every cause."""
    calls = CallSummary(
        answered=1, failures=dict.fromkeys(FailureCause, 1), p50=0.1, p95=0.1, p99=0.1
    )
    record = make_step(1, retrieval={f"endpoint-{index}": calls for index in range(endpoints)})
    progress = Progress(attempt=1, stage=Stage.TRAINING)
    return PrometheusText("demo").render(progress, record, probed or {}, 0)

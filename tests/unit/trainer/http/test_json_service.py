import math

import pytest

from raggrpo_trainer.http.call_statistics import CallStatistics
from raggrpo_trainer.http.json_service import RetryPolicy


def test_retry_delays_double_with_fifty_percent_jitter() -> None:
    policy = RetryPolicy(first_delay_seconds=0.4)
    for retry, middle in [(0, 0.4), (1, 0.8), (2, 1.6)]:
        delays = {policy.delay_seconds(retry) for _ in range(50)}
        assert len(delays) > 1
        assert 0.5 * middle <= min(delays) <= max(delays) <= 1.5 * middle


def test_latency_percentiles_use_nearest_rank() -> None:
    statistics = CallStatistics()
    for hundredth in range(200, 0, -1):
        statistics.record(hundredth / 100)
    summary = statistics.summary()
    assert (summary.answered, summary.p50, summary.p95, summary.p99) == (200, 1.0, 1.9, 1.98)


def test_latency_percentiles_are_nan_without_calls() -> None:
    assert math.isnan(CallStatistics().summary().p99)


def test_latency_percentiles_cover_latest_calls_only() -> None:
    statistics = CallStatistics()
    for _ in range(100):
        statistics.record(100.0)
    for _ in range(5000):
        statistics.record(1.0)

    assert statistics.summary().p99 == pytest.approx(1.0)
    assert statistics.summary().answered == 5100

"""The metrics of a run: help text by name. Prometheus shows each as `raggrpo_<name>`.

To add a metric of the loss, add a field to `exchange.step_metrics.LossMetrics` and a row here.
docs/reference/metrics.md is generated from these tables.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

STEP_METRICS: Final[Mapping[str, str]] = {
    "reward_mean": "Mean reward of the step's scored samples.",
    "reward_std": "Population standard deviation of the rewards.",
    "exact_match": "Share of scored samples whose answer matches exactly.",
    "num_samples": "Samples of the step.",
    "num_failed": "Samples without a reward.",
    "zero_variance": "Share of groups with equal rewards, which contribute no gradient.",
    "response_tokens": "Mean number of sampled tokens per completion.",
    "loss": "Policy loss, averaged over the step's updates.",
    "mismatch_mean": "Mean absolute difference of trainer and engine logprobs in nats per token.",
    "mismatch_max": "Largest absolute difference of trainer and engine logprobs in nats.",
    "importance_mean": "Mean importance weight of the trained tokens.",
    "clip_fraction": "Share of trained tokens whose gradient was clipped.",
    "kl": "Mean KL divergence from the reference policy in nats per token (k3 estimator).",
    "entropy": "Mean negative logprob of the sampled tokens in nats.",
    "num_sampled_tokens": "Tokens sampled in the step.",
    "num_trained_tokens": "Tokens trained on; completions with zero advantage are skipped.",
    "num_positions": "Positions in the forward passes, including prompts and padding.",
    "grad_norm": "Largest gradient norm of the step's updates before clipping.",
    "learning_rate": "Learning rate of the step.",
    "num_skipped_updates": "Updates skipped because of FP16 overflow.",
    "loss_scale": "FP16 loss scale after the step.",
    "samples_per_second": "Samples per second of the whole step.",
    "tokens_per_second": "Sampled tokens per second of the whole step.",
}
"""Metrics of every step: fields of SampleMetrics and StepMetrics, and rates."""

PROBE_METRICS: Final[Mapping[str, str]] = {
    "host_memory_bytes": "Memory of the driver's pod.",
    "rank_memory_bytes": "Memory of the rank pod that uses the most.",
    "device_memory_bytes": "Peak GPU memory held by tensors on the rank that uses the most.",
    "weight_update_ratio": "Norm of the last update relative to the norm of the weights.",
    "train_tflops": "TFLOP/s of training over all ranks.",
    "mfu": "TFLOP/s of training relative to the peak of the GPUs (MFU).",
}
"""Metrics of the probes, reported when a probe is due; some are absent on CPUs."""

RUN_METRICS: Final[Mapping[str, str]] = {
    "step": "Last completed step.",
    "total_steps": "Target step.",
    "attempt": "Number of the attempt.",
    "stage_seconds": "Seconds in the current stage.",
    "waited_seconds": "Seconds that the attempt has waited for unavailable services.",
    "save_seconds": "Duration of the last checkpoint save in seconds.",
    "checkpoint_step": "Step of the newest complete checkpoint; 0 if there is none.",
}
"""Metrics on the Prometheus page only; Progress reports the same values as fields."""

METRICS: Final = {**RUN_METRICS, **STEP_METRICS, **PROBE_METRICS}
"""Gauges with the label `job`."""


class LabeledMetric(NamedTuple):
    """A Prometheus metric with labels in addition to `job`, or a counter."""

    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    text: str


LABELED_METRICS: Final[Mapping[str, LabeledMetric]] = {
    "step_seconds": LabeledMetric("gauge", ("stage",), "Seconds of the last step by stage."),
    "retrieval_calls": LabeledMetric(
        "counter",
        ("endpoint", "outcome"),
        "Calls to retrieval endpoints since the attempt started.",
    ),
    "retrieval_seconds": LabeledMetric(
        "gauge", ("endpoint", "quantile"), "Latency of answered calls in seconds."
    ),
    "lost_log_records": LabeledMetric(
        "counter", (), "Records that could not be written to the log folder."
    ),
}
"""Labeled metrics by name; the Prometheus page adds `_total` to the name of a counter."""

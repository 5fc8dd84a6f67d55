"""The metrics of a run: help text by name. Prometheus shows each as `raggrpo_<name>`.

To add a metric of the loss, add a field to `exchange.step_metrics.LossMetrics` and a row here.
docs/reference/metrics.md is generated from these tables.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

STEP_METRICS: Final[Mapping[str, str]] = {
    "reward_mean": "Mean reward of the step's scored samples.",
    "reward_std": "Population standard deviation of the rewards.",
    "exact_match": "Share of scored samples with a reference answer whose answer matches exactly.",
    "num_samples": "Number of samples in the step.",
    "num_failed": "Number of samples without a reward.",
    "zero_variance": "Share of groups with equal rewards, which contribute no gradient.",
    "zero_reward": "Share of samples without a reward other than 0, failed ones included.",
    "truncated": "Share of completions that were cut at data.maxResponseLength.",
    "parsed": "Share of completions with the output that the reward reads.",
    "response_tokens": "Mean number of sampled tokens per completion.",
    "loss": "Policy loss, averaged over the step's updates.",
    "mismatch_mean": "Mean absolute difference of trainer and engine logprobs in nats per token.",
    "mismatch_max": "Largest absolute difference of trainer and engine logprobs in nats.",
    "importance_mean": "Mean importance weight of the trained tokens.",
    "clip_fraction": "Share of trained tokens whose gradient was clipped.",
    "kl": "Mean KL divergence from the reference policy in nats per token (k3 estimator).",
    "entropy": "Mean negative logprob of the sampled tokens in nats.",
    "num_sampled_tokens": "Number of tokens sampled in the step.",
    "num_trained_tokens": "Number of trained tokens; completions with zero advantage are skipped.",
    "num_positions": "Number of token positions in the forward passes, with prompts and padding.",
    "grad_norm": "Largest gradient norm of the step's updates before clipping.",
    "learning_rate": "Learning rate of the step.",
    "num_skipped_updates": "Number of updates skipped because of FP16 overflow.",
    "loss_scale": "FP16 loss scale after the step.",
    "forward_seconds": "Duration of forward passes and loss on the slowest rank in seconds.",
    "backward_seconds": "Duration of backward passes on the slowest rank in seconds.",
    "optimizer_seconds": "Duration of clipping and optimizer on the slowest rank in seconds.",
    "samples_per_second": "Samples per second over the whole step.",
    "tokens_per_second": "Sampled tokens per second over the whole step.",
}
"""Metrics of every step: fields of SampleMetrics and StepMetrics, and rates."""

PROBE_METRICS: Final[Mapping[str, str]] = {
    "host_memory_bytes": "Memory used by the driver's pod in bytes.",
    "rank_memory_bytes": "Highest memory usage among the pods of ranks in bytes.",
    "device_memory_bytes": "Highest peak GPU memory of tensors among the ranks in bytes.",
    "device_memory_reserved_bytes": "Highest peak GPU memory reserved by torch in bytes.",
    "device_utilization": "Lowest share of time with a running kernel among the ranks' GPUs.",
    "weight_update_ratio": "Norm of the last update relative to the norm of the weights.",
    "train_tflops": "Training throughput of all ranks in TFLOP/s.",
    "mfu": "Training throughput relative to the peak throughput of the GPUs (MFU).",
}
"""Metrics of the probes, reported when a probe is due; some are absent on CPUs."""

RUN_METRICS: Final[Mapping[str, str]] = {
    "step": "Last completed step.",
    "total_steps": "Target step.",
    "attempt": "Number of the current attempt.",
    "stage_seconds": "Seconds since the current stage started.",
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
    "step_seconds": LabeledMetric(
        "gauge", ("stage",), "Duration of each stage of the last step in seconds."
    ),
    "step_share": LabeledMetric(
        "gauge", ("stage",), "Share of the last step's duration by stage and phase of training."
    ),
    "retrieval_calls": LabeledMetric(
        "counter",
        ("endpoint", "outcome"),
        "Number of calls to retrieval endpoints since the attempt started.",
    ),
    "retrieval_retries": LabeledMetric(
        "counter", ("endpoint",), "Repeated requests of calls since the attempt started."
    ),
    "retrieval_seconds": LabeledMetric(
        "gauge", ("endpoint", "quantile"), "Latency of answered calls in seconds."
    ),
    "lost_log_records": LabeledMetric(
        "counter", (), "Number of records that could not be written to the log folder."
    ),
}
"""Labeled metrics by name; the Prometheus page adds `_total` to the name of a counter."""

"""The metrics of a run, by name; Prometheus shows them as `raggrpo_<name>` with this help text.

To add a metric of the loss, add a field to `exchange.step_metrics.LossMetrics` and a row here.
"""

from collections.abc import Mapping
from typing import Final

STEP_METRICS: Final[Mapping[str, str]] = {
    "reward_mean": "mean reward of the step's scored samples",
    "reward_std": "population standard deviation of the rewards",
    "exact_match": "share of scored samples whose answer matches exactly",
    "num_samples": "samples of the step",
    "num_failed": "samples without a reward",
    "zero_variance": "share of groups with equal rewards, which contribute no gradient",
    "response_tokens": "mean number of sampled tokens per completion",
    "loss": "policy loss, averaged over the step's updates",
    "mismatch_mean": "mean absolute difference of trainer and engine logprobs in nats per token",
    "mismatch_max": "largest absolute difference of trainer and engine logprobs in nats",
    "importance_mean": "mean importance weight of the trained tokens",
    "clip_fraction": "share of trained tokens whose gradient was clipped",
    "kl": "mean KL divergence from the reference policy in nats per token (k3 estimator)",
    "entropy": "mean negative logprob of the sampled tokens in nats",
    "num_sampled_tokens": "tokens sampled in the step",
    "num_trained_tokens": "tokens trained on; completions with zero advantage are skipped",
    "num_positions": "positions in the forward passes, including prompts and padding",
    "grad_norm": "largest gradient norm of the step's updates before clipping",
    "learning_rate": "learning rate of the step",
    "num_skipped_updates": "updates skipped because of FP16 overflow",
    "loss_scale": "FP16 loss scale after the step",
    "samples_per_second": "samples per second of the whole step",
    "tokens_per_second": "sampled tokens per second of the whole step",
}
"""Reported for every step: fields of SampleMetrics and StepMetrics, and rates."""

PROBE_METRICS: Final[Mapping[str, str]] = {
    "host_memory_bytes": "memory of the driver's pod",
    "rank_memory_bytes": "memory of the rank pod that uses most",
    "device_memory_bytes": "peak GPU memory held by tensors on the rank that uses most",
    "weight_update_ratio": "norm of the last update relative to the norm of the weights",
    "train_tflops": "TFLOP/s of training over all ranks",
    "mfu": "train_tflops relative to the peak of the GPUs",
}
"""Reported by the probes when they are due; some are absent on CPUs."""

RUN_METRICS: Final[Mapping[str, str]] = {
    "step": "last completed step",
    "total_steps": "training.totalSteps",
    "attempt": "number of the attempt",
    "stage_seconds": "seconds in the current stage",
    "waited_seconds": "seconds the attempt has waited for services that were down",
    "save_seconds": "seconds the last checkpoint took to save",
    "checkpoint_step": "step of the newest complete checkpoint, 0 if there is none",
}
"""Reported on the Prometheus page only; Progress has them as fields."""

METRICS: Final = {**RUN_METRICS, **STEP_METRICS, **PROBE_METRICS}

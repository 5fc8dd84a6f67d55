"""Charts of the report, drawn from the history and events of a job."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise

from raggrpo_api.memory.arithmetic import GIB
from raggrpo_api.trainer.history import Record
from raggrpo_operator.core.text.figures import PHASES, checkpoint_seconds

from .charts import EMPTY, Series, Values, line_chart, number, stacked_chart

MIN_WINDOW = 10
"""Minimum window of the moving mean in steps; long runs use a tenth of their steps."""
STAGES = ("generate", "train", "retrieve", "reward", "sync", "checkpoint", "other", "data")
"""Stages in the order of layers and colors, lowest layer first."""


@dataclass(frozen=True, slots=True)
class _Chart:
    """A line chart of values from the history, omitted if all of them are missing or 0."""

    title: str
    lines: tuple[tuple[str, str], ...]
    """(key in the history, displayed name) of each line."""
    unit: float = 1.0
    log: bool = False


_LEARNING_CHARTS = (
    _Chart(
        "Shares of groups and completions",
        (
            ("zero_variance", "groups without variance"),
            ("truncated", "truncated completions"),
            ("parsed", "parsed completions"),
        ),
    ),
    _Chart("Response length", (("response_tokens", "tokens, mean of a step"),)),
    _Chart("Entropy of the sampled tokens", (("entropy", "nats per token"),)),
    _Chart("KL divergence from the reference", (("kl", "nats per token"),)),
    _Chart(
        "|trainer − engine logprob| (log scale)",
        (("mismatch_mean", "mean"), ("mismatch_max", "max")),
        log=True,
    ),
    _Chart("Gradient norm before clipping", (("grad_norm", "norm"),)),
)
_PACE_CHARTS = (
    _Chart("Step time", (("step_seconds", "seconds"),)),
    _Chart(
        "Training by phase (slowest rank)",
        tuple((f"{phase}_seconds", f"{phase}, seconds") for phase in PHASES),
    ),
    _Chart(
        "Data loading and training, share of the step",
        tuple((f"share/{name}", f"{name}, %") for name in ("data", *PHASES)),
        0.01,
    ),
    _Chart("Tokens per second", (("tokens_per_second", "sampled"),)),
    _Chart(
        "Host memory",
        (("host_memory_bytes", "driver, GiB"), ("rank_memory_bytes", "rank, GiB")),
        GIB,
    ),
    _Chart(
        "Device memory",
        (
            ("device_memory_bytes", "allocated, GiB"),
            ("device_memory_reserved_bytes", "reserved, GiB"),
        ),
        GIB,
    ),
    _Chart("GPU utilization (lowest of the ranks)", (("device_utilization", "%"),), 0.01),
    _Chart("Training throughput", (("train_tflops", "TFLOP/s"),)),
    _Chart("Model FLOPs utilization", (("mfu", "share"),)),
)
MAX_LINES = 7
"""Number of line colors; the report shows at most this many reward terms."""


def charts(history: Sequence[Record], events: Sequence[Record]) -> str:
    """Return all charts as HTML; dashed lines mark the first steps of new attempts."""
    if not history:
        return f"<h2>Learning</h2>{EMPTY}"
    marks = [b["step"] for a, b in pairwise(history) if a["epoch"] != b["epoch"]]
    with_shares = [{**record, **_share_values(record)} for record in history]
    learning = [_reward(history, marks), _terms(history, marks)]
    learning += [_lines(chart, history, marks) for chart in _LEARNING_CHARTS]
    pace = [_stages(history, events, marks)]
    pace += [_lines(chart, with_shares, marks) for chart in _PACE_CHARTS]
    note = "Hover over a chart to see its values." + (
        " Dashed line: first step of a new attempt." if marks else ""
    )
    return (
        f'<h2>Learning</h2><p class="soft">{note}</p><div class="charts">{"".join(learning)}</div>'
        f'<h2>Pace and memory</h2><div class="charts">{"".join(pace)}</div>'
    )


def moving_mean(values: Values, window: int) -> list[float | None]:
    """Return the mean of the last `window` values at each position, ignoring None."""
    sums = list(accumulate((v or 0.0 for v in values), initial=0.0))
    counts = list(accumulate((v is not None for v in values), initial=0))
    means: list[float | None] = []
    for end in range(1, len(values) + 1):
        start = max(0, end - window)
        count = counts[end] - counts[start]
        means.append((sums[end] - sums[start]) / count if count else None)
    return means


def _reward(history: Sequence[Record], marks: Sequence[int]) -> str:
    window = _window(history)
    reward, exact = ([r.get(k) for r in history] for k in ("reward_mean", "exact_match"))
    series = [
        Series("mean of a step", reward, "s1", faint=True),
        Series(f"mean of {window} steps", moving_mean(reward, window), "s1"),
    ]
    matches = Series(f"exact match, mean of {window} steps", moving_mean(exact, window), "s3")
    if exact != reward and _has_values(matches):
        series.append(matches)
    return _figure("Reward", series, line_chart(_steps(history), series, marks=marks))


def _terms(history: Sequence[Record], marks: Sequence[int]) -> str:
    """Return the chart of the reward's terms, unweighted, or "" if there is only one."""
    window = _window(history)
    parts = [record.get("reward_parts", {}) for record in history]
    names = list(dict.fromkeys(name for each in parts for name in each))[:MAX_LINES]
    if len(names) < 2:
        return ""
    series = [
        Series(name, moving_mean([each.get(name) for each in parts], window), f"s{color}")
        for color, name in enumerate(names, 1)
    ]
    title = f"Reward by term (without weights, mean of {window} steps)"
    return _figure(title, series, line_chart(_steps(history), series, marks=marks))


def _window(history: Sequence[Record]) -> int:
    return max(MIN_WINDOW, len(history) // 10)


def _has_values(series: Series) -> bool:
    return any(value is not None for value in series.values)


def _stages(history: Sequence[Record], events: Sequence[Record], marks: Sequence[int]) -> str:
    seconds_by_step = checkpoint_seconds(events)
    rows = [
        {**r.get("seconds", {}), "checkpoint": seconds_by_step.get(r["step"], 0.0)} for r in history
    ]
    layers = [
        Series(stage, [row.get(stage, 0.0) for row in rows], f"s{color}")
        for color, stage in enumerate(STAGES, 1)
    ]
    layers = [layer for layer in layers if any(layer.values)]
    drawing = stacked_chart(_steps(history), layers, marks=marks)
    return _figure("Seconds by stage", layers, drawing)


def _share_values(record: Record) -> dict[str, float]:
    return {f"share/{name}": share for name, share in record.get("shares", {}).items()}


def _lines(chart: _Chart, history: Sequence[Record], marks: Sequence[int]) -> str:
    keys = [key for key, _ in chart.lines]
    records = [r for r in history if any(r.get(key) is not None for key in keys)]
    if not any(r.get(key) for key in keys for r in records):
        return ""
    series = [
        Series(name, [_scaled(r.get(key), chart.unit) for r in records], f"s{color}")
        for color, (key, name) in enumerate(chart.lines, 1)
    ]
    series = [each for each in series if _has_values(each)]
    drawing = line_chart(_steps(records), series, marks=marks, log=chart.log)
    return _figure(chart.title, series, drawing)


def _figure(title: str, series: Sequence[Series], drawing: str) -> str:
    keys = "".join(
        f'<span class="key {s.css}"><i>{escape(s.name)}{_newest(s)}</i></span>'
        for s in series
        if not s.faint
    )
    return f"<figure><h3>{escape(title)}</h3><figcaption>{keys}</figcaption>{drawing}</figure>"


def _newest(series: Series) -> str:
    value = next((v for v in reversed(series.values) if v is not None), None)
    return "" if value is None else f" {number(value)}"


def _steps(history: Sequence[Record]) -> list[int]:
    return [record["step"] for record in history]


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit

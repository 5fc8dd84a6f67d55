"""Line and stacked charts as inline SVG, colored by the CSS classes s1…s8 of the page.

A value of None leaves a gap in its line.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 8, 24
MAX_POINTS = 280
"""Maximum points of a chart; with more steps than that, each point is a mean of several steps."""

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """A line or layer; `css` is its color class, and a `faint` line is drawn behind the others."""

    name: str
    values: Values
    css: str
    faint: bool = False


def line_chart(
    xs: Sequence[int], series: Sequence[Series], *, marks: Sequence[int] = (), log: bool = False
) -> str:
    """Return a line chart over integer `xs`; `marks` are positions of dashed vertical lines."""
    xs, series = _averaged(xs, series)
    usable = [v for s in series for v in s.values if v is not None and (v > 0 or not log)]
    if not usable:
        return EMPTY
    ticks = _log_ticks(min(usable), max(usable)) if log else _ticks(min(usable), max(usable))
    axes = _Axes(xs, ticks, log)
    ordered = sorted(series, key=lambda s: not s.faint)
    return axes.frame([_path(axes, xs, s) for s in ordered], series, marks)


def stacked_chart(xs: Sequence[int], series: Sequence[Series], *, marks: Sequence[int] = ()) -> str:
    """Return a chart of stacked layers, with the first series at the bottom."""
    xs, series = _averaged(xs, series)
    columns = [list(accumulate(v or 0.0 for v in column)) for column in _columns(series)]
    if not columns:
        return EMPTY
    axes = _Axes(xs, _ticks(0.0, max(column[-1] for column in columns)), log=False)
    layers = []
    below = [0.0] * len(xs)
    for number, layer in enumerate(series):
        above = [column[number] for column in columns]
        upper = [axes.point(x, y) for x, y in zip(xs, above, strict=True)]
        lower = [axes.point(x, y) for x, y in zip(xs, below, strict=True)]
        corners = " ".join([*upper, *reversed(lower)])
        layers.append(f'<polygon class="layer {layer.css}" points="{corners}"/>')
        below = above
    return axes.frame(layers, series, marks)


def number(value: float) -> str:
    """Return a number as text with three significant digits, or five if it is 1000 or more."""
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:.5g}"
    return text.replace("e-0", "e-").replace("e+0", "e")


EMPTY = '<p class="none">no data yet</p>'


class _Axes:
    """Scales, grid, labels and hover strips of one chart."""

    def __init__(self, xs: Sequence[int], ticks: list[float], log: bool) -> None:
        self._xs, self._ticks, self.is_log = xs, ticks, log
        self._value: Callable[[float], float] = math.log10 if log else float
        self._low, self._high = self._value(ticks[0]), self._value(ticks[-1])

    def x(self, x: float) -> float:
        span = max(1, self._xs[-1] - self._xs[0])
        return LEFT + (x - self._xs[0]) / span * (WIDTH - LEFT - RIGHT)

    def y(self, y: float) -> float:
        share = (self._value(y) - self._low) / (self._high - self._low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def point(self, x: float, y: float) -> str:
        return f"{self.x(x):.1f},{self.y(y):.1f}"

    def frame(self, shapes: list[str], series: Sequence[Series], marks: Sequence[int]) -> str:
        inside = [m for m in marks if self._xs[0] < m <= self._xs[-1]]
        grid = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
        for tick in self._ticks:
            y = self.y(tick)
            grid.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            grid.append(f'<text class="y" x="{LEFT - 6}" y="{y + 3.5:.1f}">{number(tick)}</text>')
        numbers = [
            f'<text class="x" x="{self.x(tick):.1f}" y="{HEIGHT - 6}">{tick}</text>'
            for tick in _whole_ticks(self._xs[0], self._xs[-1])
        ]
        lines = [
            f'<path class="mark" d="M{self.x(mark - 0.5):.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
            for mark in inside
        ]
        return "".join([*grid, *numbers, *shapes, *lines, *self._strips(series), "</svg>"])

    def _strips(self, series: Sequence[Series]) -> list[str]:
        """Return a transparent column for each x, with a tooltip that shows the values."""
        width = (WIDTH - LEFT - RIGHT) / max(1, len(self._xs) - 1)
        height = HEIGHT - TOP - BOTTOM
        strips = []
        for x, column in zip(self._xs, _columns(series), strict=True):
            named = zip(series, column, strict=True)
            values = "\n".join(f"{s.name} {number(v)}" for s, v in named if v is not None)
            strips.append(
                f'<rect class="strip" x="{self.x(x) - width / 2:.1f}" y="{TOP}" '
                f'width="{width:.1f}" height="{height}">'
                f"<title>step {x}\n{escape(values)}</title></rect>"
            )
        return strips


def _path(axes: _Axes, xs: Sequence[int], series: Series) -> str:
    """Return a line with gaps as an SVG path; `h.01` makes an isolated last point visible."""
    commands: list[str] = []
    after_gap = True
    for x, value in zip(xs, series.values, strict=True):
        if value is None or (axes.is_log and value <= 0):
            after_gap = True
            continue
        commands.append(f"{'M' if after_gap else 'L'}{axes.point(x, value)}")
        after_gap = False
    css = f"line {series.css}{' faint' if series.faint else ''}"
    return f'<path class="{css}" d="{"".join(commands)}h.01"/>'


def _averaged(xs: Sequence[int], series: Sequence[Series]) -> tuple[list[int], list[Series]]:
    """Return xs and series with at most MAX_POINTS points, each a mean of equally many steps."""
    size = max(1, math.ceil(len(xs) / MAX_POINTS))
    starts = range(0, len(xs), size)

    def means(values: Values) -> list[float | None]:
        buckets = ([v for v in values[i : i + size] if v is not None] for i in starts)
        return [sum(bucket) / len(bucket) if bucket else None for bucket in buckets]

    last = [xs[min(i + size, len(xs)) - 1] for i in starts]
    return last, [Series(s.name, means(s.values), s.css, s.faint) for s in series]


def _columns(series: Sequence[Series]) -> list[tuple[float | None, ...]]:
    return list(zip(*(s.values for s in series), strict=True))


def _ticks(low: float, high: float) -> list[float]:
    """Return round tick values that cover zero and the range from `low` to `high`."""
    low, high = min(low, 0.0), max(high, 0.0)
    raw = (high - low) / 4 or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [tick * step for tick in range(first, max(last, first + 1) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _whole_ticks(low: int, high: int) -> list[int]:
    step = max(1, round(_ticks(0, max(1, high - low))[1]))
    return list(range(-(-low // step) * step, high + 1, step)) or [low]

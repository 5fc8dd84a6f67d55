import math
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from raggrpo_operator.reporting.charts import (
    HEIGHT,
    MAX_POINTS,
    WIDTH,
    Series,
    line_chart,
    number,
    stacked_chart,
)
from raggrpo_operator.reporting.report_charts import moving_mean


def drawn(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def paths(svg: str, css: str) -> list[str]:
    return [e.get("d", "") for e in drawn(svg).iter("path") if e.get("class", "").startswith(css)]


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+),([\d.]+)", path)]


def labels(svg: str, css: str) -> list[str]:
    return [e.text or "" for e in drawn(svg).iter("text") if e.get("class") == css]


def titles(svg: str) -> list[str]:
    return [e.text or "" for e in drawn(svg).iter("title")]


def test_chart_line_follows_values() -> None:
    svg = line_chart([1, 2, 3], [Series("reward", [0.0, 0.5, 1.0], "s1")])
    (_, y1), (_, y2), (_, y3) = points(paths(svg, "line")[0])
    assert y1 > y2 > y3
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)


@pytest.mark.parametrize(
    "values",
    [[0.0, 0.0], [5.0], [-2.0, -1.0], [1e-9, 3e-9], [1e12, -1e12], [3.0, 3.0, 3.0], [0.07, 0.31]],
)
def test_chart_points_are_inside_axes(values: list[float]) -> None:
    svg = line_chart(list(range(1, len(values) + 1)), [Series("x", values, "s1")])

    assert 2 <= len(labels(svg, "y")) <= 9
    assert "0" in labels(svg, "y")
    for x, y in points(paths(svg, "line")[0]):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_chart_line_breaks_at_missing_value() -> None:
    svg = line_chart([1, 2, 3, 4], [Series("x", [1.0, None, 2.0, 3.0], "s1")])
    assert paths(svg, "line")[0].count("M") == 2


def test_log_scale_spaces_decades_evenly_and_omits_zero() -> None:
    series = [Series("gap", [1e-6, 1e-5, 1e-4, 0.0], "s1")]
    svg = line_chart([1, 2, 3, 4], series, log=True)

    ys = [y for _, y in points(paths(svg, "line")[0])]
    assert len(ys) == 3
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)
    assert labels(svg, "y") == ["1e-6", "1e-5", "0.0001"]


def test_attempt_mark_is_drawn_before_its_first_step() -> None:
    svg = line_chart([1, 2, 3], [Series("x", [1.0, 1.0, 1.0], "s1")], marks=[3])
    [mark] = paths(svg, "mark")
    (_, _), (x2, _), (x3, _) = points(paths(svg, "line")[0])
    assert x2 < float(mark[1:].split()[0]) < x3


def test_tooltip_shows_step_and_values() -> None:
    svg = line_chart([7, 8], [Series("a<b", [0.25, None], "s1"), Series("other", [1, 2], "s2")])
    assert titles(svg) == ["step 7\na<b 0.25\nother 1", "step 8\nother 2"]


def test_chart_of_long_run_shows_averages() -> None:
    values = [float(step % 2) for step in range(1000)]
    svg = line_chart(range(1, 1001), [Series("x", values, "s1")])
    assert len(points(paths(svg, "line")[0])) == 250 <= MAX_POINTS
    assert titles(svg)[0] == "step 4\nx 0.5"
    assert titles(svg)[-1] == "step 1000\nx 0.5"


def test_chart_layers_are_stacked() -> None:
    svg = stacked_chart([1, 2], [Series("a", [1.0, 1.0], "s1"), Series("b", [2.0, 4.0], "s2")])

    low, high = [
        [tuple(map(float, corner.split(","))) for corner in e.get("points", "").split()]
        for e in drawn(svg).iter("polygon")
    ]
    assert high[2:] == list(reversed(low[:2]))
    assert labels(svg, "y")[-1] in ("5", "6")


@pytest.mark.parametrize("chart", [line_chart, stacked_chart])
def test_chart_without_values_shows_no_data_text(chart: Any) -> None:
    assert "no data yet" in chart([], [])
    assert "no data yet" in line_chart([1], [Series("x", [None], "s1")])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.1234, "0.123"), (2.0, "2"), (4.15e-7, "4.15e-7"), (12345.6, "12346"),
     (999.6, "1e3"), (2.5e9, "2.5e9"), (-0.5, "-0.5")],
)  # fmt: skip
def test_chart_numbers_are_formatted_compactly(value: float, text: str) -> None:
    assert number(value) == text


def test_moving_mean_ignores_gaps() -> None:
    assert moving_mean([1.0, None, 3.0, 8.0], 2) == [1.0, 1.0, 3.0, 5.5]
    assert moving_mean([None, 2.0], 3) == [None, 2.0]


def test_moving_mean_uses_window() -> None:
    means = moving_mean([100.0, *[1.0] * 20], 10)
    assert means[-1] is not None
    assert math.isclose(means[-1], 1.0)

"""Charts of numbers that hardly differ."""

from __future__ import annotations

import pytest
from kernel_coder.report.charts import Chart, Line, svg


@pytest.mark.parametrize(
    "values", [(1.0, 1 - 1e-13), (0.0, 0.0), (1e-300, 2e-300), (-5.0, -5.0 + 1e-12), (1e9, 1e9 + 1)]
)
def test_nearly_level_line_is_drawn(values: tuple[float, float]) -> None:
    chart = Chart("title", "about", (Line("one", (1, 2), values),))
    assert "<path" in svg(chart)

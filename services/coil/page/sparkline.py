"""A small curve of the past, as inline SVG."""

from collections.abc import Sequence

from coil.page.markup import Html, tag

WIDTH = 240
HEIGHT = 44
_MARGIN = 3.0


def render_sparkline(values: Sequence[int], *, slots: int, label: str) -> Html:
    """The values from the left edge's past to now at the right edge, where `slots` of them would fill the width.

    The curve stands on zero, and its highest value near the top: it shows change. How much of the whole that is, the
    bar beside it shows.
    """
    shown = values[-slots:]
    parts: list[Html] = [tag("path", class_="base", d=f"M0 {HEIGHT - _MARGIN}H{WIDTH}")]
    if shown:
        points = _place(shown, slots)
        line = " ".join(f"{x:.1f} {y:.1f}" for x, y in points)
        floor = HEIGHT - _MARGIN
        parts.append(tag("path", class_="under", d=f"M{points[0][0]:.1f} {floor}L{line} {points[-1][0]:.1f} {floor}Z"))
        parts.append(tag("path", class_="curve", d=f"M{line}"))
        parts.append(tag("circle", class_="now", cx=f"{points[-1][0]:.1f}", cy=f"{points[-1][1]:.1f}", r=2.6))
    return tag("svg", parts, class_="spark", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=label)


def _place(values: Sequence[int], slots: int) -> list[tuple[float, float]]:
    step = (WIDTH - 2 * _MARGIN) / max(slots - 1, 1)
    top = max(*values, 1)
    height = HEIGHT - 2 * _MARGIN
    last = len(values) - 1
    return [
        (WIDTH - _MARGIN - (last - place) * step, HEIGHT - _MARGIN - height * value / top)
        for place, value in enumerate(values)
    ]

"""Which metrics and labels an expression asks for."""

import pytest

from integration.dashboard.promql import PromqlError, parse_query


@pytest.mark.parametrize(
    ("text", "selectors", "grouped"),
    [
        ("up", [("up", [])], []),
        ("sum(up)", [("up", [])], []),
        ('up{job="coild", instance=~"a|b",}', [("up", ["job", "instance"])], []),
        ("sum by (pool) (rate(waits_total[$__rate_interval]))", [("waits_total", [])], ["pool"]),
        ("sum(up) by (job)", [("up", [])], ["job"]),
        ("sum without () (up)", [("up", [])], []),
        (
            'histogram_quantile(0.99, sum by (le, op) (rate(seconds_bucket{op!~"x",pool=~"$pool"}[5m])))',
            [("seconds_bucket", ["op", "pool"])],
            ["le", "op"],
        ),
        ("a / on (pool) group_left (node) b", [("a", []), ("b", [])], ["pool", "node"]),
        ("a and on (job, instance) b or c unless d", [("a", []), ("b", []), ("c", []), ("d", [])], ["job", "instance"]),
        ("topk(3, a offset 5m) > bool 1e3", [("a", [])], []),
        ("0 < a < time() + 86400", [("a", [])], []),
        ('a{text="} by (nothing) {"} # by (nobody)', [("a", ["text"])], []),
        ("max_over_time(rate(a[5m])[1h:1m])", [("a", [])], []),
        ('absent(a{name="x"}) or vector(0)', [("a", ["name"])], []),
        ("job:requests:rate5m", [("job:requests:rate5m", [])], []),
        ("-a ^ 2 % 3", [("a", [])], []),
    ],
)
def test_what_is_asked_for(text: str, selectors: list[tuple[str, list[str]]], grouped: list[str]) -> None:
    query = parse_query(text)
    assert [(name, list(labels)) for name, labels in query.selectors] == selectors
    assert query.grouped == set(grouped)
    assert query.metrics == {name for name, _ in selectors}


@pytest.mark.parametrize(
    "text",
    [
        "sum(up",
        "sum(up))",
        "up{job}",
        "up{job=coild}",
        'up{"job"="coild"}',
        'up{job="coild"',
        "sum by pool, (up)",
        "sum by (pool (up)",
        "a, b",
        "{job}",
        "a ; b",
        'up{job="unfinished}',
    ],
)
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(PromqlError):
        parse_query(text)

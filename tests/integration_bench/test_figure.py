import pytest

from integration.bench.figure import Better, Figure, Reading, select_figures

ADD = Figure("cni.add.p50_ms.par1", "ms", peer="ptp")
RATE = Figure("cni.add.per_s.par1", "1/s", Better.HIGHER)
LIST = Figure("informer.list", "s")
EVERY = (ADD, RATE, LIST)


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [
        ([], EVERY),
        (["cni"], (ADD, RATE)),
        (["cni.add.p"], (ADD, RATE)),
        (["informer", "cni.add.per"], (RATE, LIST)),
        (["cni", "cni.add"], (ADD, RATE)),
        (["informer.list"], (LIST,)),
    ],
)
def test_selection_by_prefix_keeps_the_order(prefixes: list[str], expected: tuple[Figure, ...]) -> None:
    assert select_figures(EVERY, prefixes) == expected


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"called egress….*informer\.list"):
        select_figures(EVERY, ["cni", "egress"])


def test_document_has_every_field() -> None:
    reading = Reading(figure=ADD, value=12.3456789, peer_value=10, runs=7, note="quiet machine")
    assert reading.document() == {
        "name": "cni.add.p50_ms.par1",
        "value": 12.3457,
        "unit": "ms",
        "better": "lower",
        "peer": "ptp",
        "peer_value": 10.0,
        "ratio": 1.23457,
        "runs": 7,
        "note": "quiet machine",
    }


@pytest.mark.parametrize(("value", "peer_value"), [(None, 3.0), (3.0, None), (3.0, 0.0), (None, None)])
def test_no_ratio_without_both(value: float | None, peer_value: float | None) -> None:
    assert Reading(figure=ADD, value=value, peer_value=peer_value).ratio is None


def test_a_value_of_zero_is_a_value() -> None:
    reading = Reading(figure=ADD, value=0.0, peer_value=2.0)
    assert (reading.ratio, reading.document()["value"]) == (0.0, 0.0)

"""From samples to figures."""

import msgspec
import pytest

from integration.bench.egress_reading import (
    ADD,
    ADD_FIGURES,
    CPU,
    CROWD_FIGURES,
    FIGURES,
    IDLE,
    PATH_FIGURES,
    READY,
    RSS,
    RTT,
    THROUGHPUT,
    take_readings,
)
from integration.bench.egress_result import Adds, Crowd, Fill, Joins, PathSamples, Result, TrafficPaths, decode, encode

PATHS = TrafficPaths(
    tunnel=PathSamples(upload_gbits=(3.0, 1.0, 2.0), download_gbits=(1.0,), rtt_ms=(0.5, 0.6, 0.7)),
    plain=PathSamples(upload_gbits=(4.0, 5.0, 3.0), download_gbits=(2.0,), rtt_ms=(0.3, 0.4, 0.5)),
    direct=PathSamples(upload_gbits=(8.0,), download_gbits=(8.0,), rtt_ms=(0.2,)),
    megabytes=16,
    datagrams=300,
)
CROWD = Crowd(
    joins=tuple(Joins(count=count, ms=(1.0 * count, 3.0 * count, 2.0 * count)) for count in (1, 100, 1000)),
    fills=(
        Fill(first=1, last=99, cpu_ms=99.0, seconds=5.0),
        Fill(first=100, last=899, cpu_ms=1600.0, seconds=9.0),
        Fill(first=900, last=999, cpu_ms=300.0, seconds=2.0),
    ),
    rss_mb=52.0,
    peak_mb=54.0,
    pss_mb=50.0,
    empty_rss_mb=48.0,
    idle_seconds=20.0,
    idle_cpu_ms=100.0,
    tunnels=1000,
    routes=1000,
)
ADDS = Adds(client_ms=(30.0, 10.0, 20.0), plain_ms=(4.0, 6.0, 5.0), count=16)
RESULT = Result(place="Linux here", paths=PATHS, crowd=CROWD, adds=ADDS)


def test_a_result_survives_its_file() -> None:
    assert decode(encode(RESULT)) == RESULT


def test_every_figure_is_read_once() -> None:
    assert [reading.figure for reading in take_readings(RESULT)] == list(FIGURES)


def test_our_median_beside_the_peers() -> None:
    readings = {reading.figure: reading for reading in take_readings(RESULT)}
    throughput, trip = readings[THROUGHPUT], readings[RTT]
    assert (throughput.value, throughput.peer_value, throughput.ratio, throughput.runs) == (2.0, 4.0, 0.5, 3)
    assert (trip.value, trip.peer_value, trip.runs) == (0.6, 0.4, 3)
    assert "other direction has the ratio 0.50; 0.25 of a pod without an Egress" in throughput.note


def test_the_agents_figures() -> None:
    readings = {reading.figure: reading for reading in take_readings(RESULT)}
    assert [readings[READY[count]].value for count in (1, 100, 1000)] == [2.0, 200.0, 2000.0]
    assert readings[RSS].value == 52.0
    assert readings[CPU].value == pytest.approx(1999 / 999)
    assert "1 … 99: 1.0 ms, 900 … 999: 3.0 ms, in between 2 … 2" in readings[CPU].note
    assert readings[IDLE].value == pytest.approx(0.5)


def test_the_price_of_an_egress_is_the_ratio() -> None:
    readings = {reading.figure: reading for reading in take_readings(RESULT)}
    add = readings[ADD]
    assert (add.figure.name, add.value, add.peer_value, add.ratio, add.runs) == ("cni.add.p50_ms.egress", 20, 5, 4, 3)
    assert "16 ADDs a run, 10 … 30 against 4 … 6; Linux here" in add.note


@pytest.mark.parametrize(
    ("result", "figures"),
    [
        (msgspec.structs.replace(RESULT, crowd=None), (*PATH_FIGURES, *ADD_FIGURES)),
        (msgspec.structs.replace(RESULT, paths=None), (*CROWD_FIGURES, *ADD_FIGURES)),
        (msgspec.structs.replace(RESULT, adds=None), (*PATH_FIGURES, *CROWD_FIGURES)),
        (Result(place="nowhere"), ()),
    ],
    ids=["without crowd", "without paths", "without ADDs", "nothing"],
)
def test_what_was_not_measured_is_not_told(result: Result, figures: tuple[object, ...]) -> None:
    assert tuple(reading.figure for reading in take_readings(result)) == figures

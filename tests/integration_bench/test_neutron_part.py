"""What the rounds of coil-raven and of a bare loop come to."""

from integration.bench.neutron_part import (
    CALLS,
    RATE,
    RATE_POOL,
    READY,
    READY_POOL,
    RavenRound,
    count_calls,
    read_pool,
    read_rounds,
)


def test_rounds_of_the_same_number_are_neighbours() -> None:
    ours = [RavenRound(pods_per_s=rate, ready_ms=(100.0, 1000.0 / rate)) for rate in (8.0, 10.0, 12.0)]
    ready, calls, rate = read_rounds(ours, [10.0, 10.0, 12.0], calls=[1.0, 1.0, 1.5], alone=[90.0, 120.0, 100.0])
    assert (ready.figure, ready.value, ready.runs) == (READY, 100.0, 3)
    assert (calls.figure, calls.value) == (CALLS, 1.0)
    assert (rate.figure, rate.value, rate.peer_value, rate.ratio) == (RATE, 10.0, 10.0, 1.0)
    assert "neighbouring runs have the ratio 1.00" in rate.note


def test_rounds_with_a_pool_have_no_peer() -> None:
    rounds = [RavenRound(pods_per_s=rate, ready_ms=(40.0, 60.0)) for rate in (20.0, 30.0, 25.0)]
    ready, rate = read_pool(rounds, [30.0, 20.0, 25.0])
    assert (ready.figure, ready.value, ready.runs) == (READY_POOL, 25.0, 3)
    assert (rate.figure, rate.value, rate.peer_value) == (RATE_POOL, 25.0, None)


def test_calls_are_those_to_openstack() -> None:
    page = """\
# TYPE coil_openstack_call_duration_seconds histogram
coil_openstack_call_duration_seconds_bucket{call="create port",le="0.5"} 3.0
coil_openstack_call_duration_seconds_count{call="create port"} 24.0
coil_openstack_call_duration_seconds_sum{call="create port"} 9.1
coil_openstack_call_duration_seconds_count{call="list ports"} 2.0
workqueue_adds_total{name="pod"} 50.0
"""
    assert count_calls(page) == 26

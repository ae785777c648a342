import pytest

from integration.bench.cni_run import Run, summarise_runs
from integration.bench.process_state import CpuTime

QUICK = Run(latencies_ms=(1.0, 2.0, 3.0), seconds=0.003, plugins=CpuTime(0.001, 0.001), daemon=CpuTime(0.001, 0.0))
USUAL = Run(latencies_ms=(4.0, 5.0, 6.0), seconds=0.006, plugins=CpuTime(0.002, 0.001), daemon=CpuTime(0.001, 0.002))
DISTURBED = Run(latencies_ms=(7.0, 8.0, 900.0), seconds=1.0, plugins=CpuTime(0.010, 0.005), daemon=CpuTime(0.015, 0.0))


def test_medians_over_runs_and_p99_over_operations() -> None:
    summary = summarise_runs([DISTURBED, QUICK, USUAL])
    assert summary is not None
    assert (summary.p50_ms, summary.p99_ms, summary.per_s) == (5.0, 900.0, 500.0)
    assert summary.cpu_ms == pytest.approx(2.0)


def test_where_the_cpu_time_goes_is_the_mean_of_all_operations() -> None:
    summary = summarise_runs([DISTURBED, QUICK, USUAL])
    assert summary is not None
    assert summary.shares == "plugin 1.4 user + 0.8 system; daemon 1.9 user + 0.2 system"


def test_nothing_sums_up_to_nothing() -> None:
    assert summarise_runs([]) is None

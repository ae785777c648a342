from integration.bench.cni_run import Run, summarise_runs


def test_medians_over_runs_and_p99_over_operations() -> None:
    quick = Run(latencies_ms=(1.0, 2.0, 3.0), seconds=0.003, cpu_ms=3.0)
    usual = Run(latencies_ms=(4.0, 5.0, 6.0), seconds=0.006, cpu_ms=6.0)
    disturbed = Run(latencies_ms=(7.0, 8.0, 900.0), seconds=1.0, cpu_ms=30.0)
    summary = summarise_runs([disturbed, quick, usual])
    assert summary is not None
    assert (summary.p50_ms, summary.p99_ms, summary.per_s, summary.cpu_ms) == (5.0, 900.0, 500.0, 2.0)


def test_nothing_sums_up_to_nothing() -> None:
    assert summarise_runs([]) is None

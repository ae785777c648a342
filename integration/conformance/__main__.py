"""`python -m integration.conformance [FAMILIES…]`: Kubernetes' network conformance tests on clusters with Coil.

FAMILIES are of ipv4-first, ipv6-first, ipv4-only and ipv6-only, by default all; each has a cluster of its own, one
after the other. Prints a table and writes it to `build/conformance/table.md`, with reports and logs beside it. Exit
code 0 when every spec has passed in all of them and no packet of a cluster has left the machine, 1 otherwise. Needs
root.
"""

import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from integration.cluster.__main__ import EXPECTED
from integration.cluster.family import ClusterFamilies
from integration.cluster.programs import conformance_version
from integration.conformance.images import build_images
from integration.conformance.report import Outcome, Result, render_table
from integration.conformance.stage import conformance_cluster
from integration.conformance.suite import CONFORMANCE, Suite, SuiteError, list_specs
from integration.deployment import UnsupportedVersionError
from integration.helm.program import HelmError
from integration.image.build import build_image
from integration.image.context import ContextError
from integration.image.dockerfile import DockerfileError
from integration.image.error import ImageBuildError
from integration.uplink_watch import UplinkWatch, describe_leaks

_RESULTS = Path(__file__).parents[2] / "build" / "conformance"
_PROCESSES = 3
"""Most of the time of a spec is waiting, so that three do not need three processors."""
_CHOICES = {families.label: families for families in ClusterFamilies}
_FAILURES = (*EXPECTED, ContextError, DockerfileError, HelmError, ImageBuildError, SuiteError, UnsupportedVersionError)
"""What is told without a traceback."""


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; the exit code."""
    parser = ArgumentParser("conformance", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILIES", help=f"of {', '.join(_CHOICES)}")
    parser.add_argument("--focus", default=CONFORMANCE, help="a regular expression that selects specs")
    parser.add_argument("--processes", type=int, default=_PROCESSES, choices=range(1, 9), metavar="N", help="at a time")
    parser.add_argument("--results", type=Path, default=_RESULTS, metavar="FOLDER", help="where reports go")
    parsed = parser.parse_args(arguments)
    if unknown := [name for name in parsed.families if name not in _CHOICES]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(_CHOICES)}")
    names: Sequence[str] = parsed.families or list(_CHOICES)
    results: Path = parsed.results.resolve()
    try:
        coil, images = build_image(), build_images()
        specs = list_specs(parsed.focus, results / "specs")
    except _FAILURES as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(specs)} specs of Kubernetes {conformance_version()}", flush=True)
    runs: dict[str, list[Result]] = {}
    whole = True
    for name in names:
        begun = time.monotonic()
        runs[name] = []
        with UplinkWatch() as watch:
            try:
                with conformance_cluster(_CHOICES[name], coil=coil, images=images) as cluster:
                    print(f"{name}: a cluster with Coil is up after {time.monotonic() - begun:.0f} s", flush=True)
                    runs[name] = Suite(cluster, results / name).run(specs, processes=parsed.processes)
            except _FAILURES as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                whole = False
        if leaks := watch.leaks():
            print(f"{name}: {describe_leaks(leaks)}", file=sys.stderr, flush=True)
            whole = False
        print(f"{name}: {_summary(runs[name], specs)} in {time.monotonic() - begun:.0f} s", flush=True)
    table = render_table(runs)
    (results / "table.md").write_text(f"{table}\n")
    print(f"\n{table}\n\nreports and logs: {results}")
    return 0 if whole and all(_all_passed(run, specs) for run in runs.values()) else 1


def _summary(run: Sequence[Result], specs: Sequence[str]) -> str:
    failed = [result for result in run if result.outcome is Outcome.FAILED]
    lines = [f"  failed: {result.name}\n    {result.message[:500]}" for result in failed]
    return "\n".join([*lines, f"{len(run) - len(failed)} of {len(specs)} specs passed"])


def _all_passed(run: Sequence[Result], specs: Sequence[str]) -> bool:
    return {result.name for result in run if result.outcome is Outcome.PASSED} == set(specs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

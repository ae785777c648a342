"""`e2e.test` on a running cluster: which specs there are, and what came of them.

Specs of Kubernetes have namespaces of their own and may run side by side unless they are labelled `[Serial]`. Here as
many processes as asked for have a share of them each, for most of a spec's time is waiting; serial ones follow alone.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from integration.cluster.cluster import Cluster
from integration.cluster.control_plane import find_kubectl
from integration.cluster.node_config import CLUSTER_DOMAIN
from integration.cluster.process import Process
from integration.cluster.programs import Program, locate
from integration.conformance.images import repo_list
from integration.conformance.report import Outcome, Result, read_results

CONFORMANCE = r"\[sig-network\].*\[Conformance\]"
_LIST_SECONDS = 120.0
_LEAST_SECONDS = 300.0
_SPEC_SECONDS = 180.0
"""On average, for a bound that only what hangs reaches."""
_POLL = 0.5
_PROGRESS_SECONDS = 60.0


class SuiteError(Exception):
    """The tests could not be run, or not to their end; the message says what the program said last."""


def list_specs(focus: str, folder: Path) -> list[str]:
    """The full names of the specs that the regular expression selects; `folder` takes the report. No cluster needed.

    Raises SuiteError when there are none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = str(locate((Program.E2E_TEST,))[Program.E2E_TEST])
    # It does not ask the server, but wants to know where it would be.
    command = [program, "--ginkgo.dry-run", f"--ginkgo.focus={focus}", f"--report-dir={folder}", "--host=127.0.0.1"]
    # It leaves temporary files.
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "TMPDIR": scratch}
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=_LIST_SECONDS, env=environment
            )
        except subprocess.TimeoutExpired as error:
            raise SuiteError(f"the tests could not be listed: {error}") from error
    names = [result.name for result in read_results(folder)]
    if done.returncode or not names:
        raise SuiteError(f"no spec is selected by {focus}: {(done.stdout + done.stderr)[-2000:]}")
    return names


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests on a cluster that has what `stage` gives it; reports and logs are kept in the folder, made anew."""

    cluster: Cluster
    folder: Path

    def run(self, specs: Sequence[str], *, processes: int = 1) -> list[Result]:
        """Run these specs, by full names, to their ends; what failed is told by the results.

        Raises SuiteError when one has no result, with what was said last.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        serial = [name for name in specs if "[Serial]" in name]
        shared = [name for name in specs if name not in serial]
        # Neighbours in the list of names take about as long as each other.
        shares = [shared[number::processes] for number in range(processes)]
        ended = self._run_side_by_side([share for share in shares if share])
        if serial:
            ended += self._run_side_by_side([serial])
        results = read_results(self.folder)
        logs = "\n".join(process.log.read_text(errors="replace")[-2000:] for process in ended)
        if missing := sorted(set(specs) - {result.name for result in results}):
            raise SuiteError(
                f"no result of {len(missing)} specs, {missing[0]} among them; the end of the logs:\n{logs}"
            )
        if any(process.returncode for process in ended) and all(each.outcome is Outcome.PASSED for each in results):
            raise SuiteError(f"what is done before or after the tests has failed; the end of the logs:\n{logs}")
        return results

    def _run_side_by_side(self, shares: Sequence[Sequence[str]]) -> list[Process]:
        """The processes, which have ended."""
        running = [self._start(share) for share in shares]
        deadline = time.monotonic() + max(map(_seconds, shares)) + _LEAST_SECONDS
        said = time.monotonic()
        while any(process.poll() is None for process in running):
            now = time.monotonic()
            if now > deadline:
                for process in running:
                    process.stop()
                raise SuiteError(f"the tests have not ended in time; their logs are in {self.folder}")
            if now - said > _PROGRESS_SECONDS:
                said = now
                print(f"  {self._finished()} of {sum(map(len, shares))} specs have ended", flush=True)
            time.sleep(_POLL)
        self.cluster.workspace.forget(*(process.name for process in running))
        return running

    def _start(self, share: Sequence[str]) -> Process:
        number = len(list(self.folder.iterdir())) + 1
        folder = self.folder / f"{number}"
        folder.mkdir()
        registries = folder / "registries"
        registries.write_text(repo_list())
        return self.cluster.workspace.spawn(
            f"e2e-{number}",
            [
                str(locate((Program.E2E_TEST,))[Program.E2E_TEST]),
                # It is the end of what is compared: the suite has a name as well.
                *(f"--ginkgo.focus={re.escape(name)}$" for name in share),
                f"--ginkgo.timeout={_seconds(share):.0f}s",
                "--ginkgo.no-color",
                "--ginkgo.v",
                "--ginkgo.silence-skips",
                f"--kubeconfig={self.cluster.plane.admin_kubeconfig}",
                f"--kubectl-path={find_kubectl()}",
                "--provider=skeleton",
                f"--dns-domain={CLUSTER_DOMAIN}",
                f"--kube-test-repo-list={registries}",
                f"--report-dir={folder}",
            ],
            env={
                # The program reads it before its flags.
                "KUBE_TEST_REPO_LIST": str(registries),
                # What it leaves there goes with the cluster.
                "TMPDIR": str(self.cluster.workspace.make_folder("tmp")),
            },
            log=folder / "log",
        )

    def _finished(self) -> int:
        """Specs that have ended, by the line that each ends with."""
        logs = (path.read_text(errors="replace") for path in self.folder.rglob("log"))
        return sum(len(re.findall(r"^• ", text, re.MULTILINE)) for text in logs)


def _seconds(share: Sequence[str]) -> float:
    return _LEAST_SECONDS + _SPEC_SECONDS * len(share)

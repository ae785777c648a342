"""`python -m integration.verdict [--all]`: the sessions of `make test` or of `make test-all`; exit code 0 if it passed.

A module that fails in `make test` is run once more, alone, after the others, unless its failure is final. If it passes
then, the run passes, and the tests are named as flaky in the last lines and in `build/flaky.json`. `make test-all`
repeats nothing.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from integration.verdict.layer import FINAL, RECORD, TEST, TEST_ALL, Layer
from integration.verdict.result import FOLDER, REPOSITORY
from integration.verdict.session import run_session, run_step
from integration.verdict.verdict import Rerun, SessionRun, Verdict, select_reruns

CALLS = REPOSITORY / "build" / "access"
"""What the programs asked of API servers (integration/access)."""
VERDICT = REPOSITORY / "build" / "verdict.json"
FLAKY = REPOSITORY / "build" / "flaky.json"
_FLAKES_KEPT = 500


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.verdict", description=__doc__)
    parser.add_argument("--all", action="store_true", help="the sessions of make test-all")
    layer = TEST_ALL if parser.parse_args(arguments).all else TEST
    try:
        verdict = asyncio.run(judge(layer))
    except KeyboardInterrupt:
        return 130
    VERDICT.parent.mkdir(exist_ok=True)
    VERDICT.write_text(json.dumps(verdict.document(), indent=1) + "\n")
    keep_flakes(FLAKY, verdict, now=datetime.now(UTC))
    print(*verdict.lines(), sep="\n", flush=True)
    return 0 if verdict.passed else 1


async def judge(layer: Layer) -> Verdict:
    """Run all sessions of the layer, and what is to be run once more."""
    began = time.monotonic()
    commit, clean = _git("rev-parse", "HEAD"), _git("status", "--porcelain") == ""
    # What former runs have left would speak for this one.
    for folder in (FOLDER, CALLS):
        shutil.rmtree(folder, ignore_errors=True)
    runs: list[SessionRun] = []
    for step in layer.steps:
        runs += await run_step(step)
    reruns = []
    for number, (session, module) in enumerate(select_reruns(runs, limit=layer.reruns, final=FINAL), start=1):
        print(f"== once more, alone: {module}", flush=True)
        run = await run_session(session, module, name=f"{session}-rerun-{number}")
        reruns.append(Rerun(module=module, run=run))
    runs += await run_step([RECORD])
    return Verdict(
        command=layer.command,
        commit=commit,
        clean=clean,
        seconds=time.monotonic() - began,
        runs=runs,
        reruns=reruns,
    )


def keep_flakes(path: Path, verdict: Verdict, *, now: datetime) -> None:
    """Add what was flaky to the record of former runs; a record that cannot be read is begun again."""
    try:
        record = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        record = []
    record += [
        {
            "time": now.isoformat(timespec="seconds"),
            "commit": verdict.commit,
            "session": session,
            "test": test.test,
            "sentence": test.sentence,
        }
        for session, test in verdict.flaky
    ]
    path.write_text(json.dumps(record[-_FLAKES_KEPT:], indent=1) + "\n")


def _git(*arguments: str) -> str:
    """What git prints; empty where there is no repository."""
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

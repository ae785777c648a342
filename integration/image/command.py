"""One program of a build, bounded, with its output in a file.

It has process ids and mounts of its own, so that nothing of it, and nothing that it mounted, outlives it.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from integration.image.error import ImageBuildError

STEP_SECONDS = 3600
"""A step takes minutes; on a machine with much else to do, an emulated one takes ten times as long."""
_SAID_LINES = 30
_ALONE = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"),
)


def run_logged(
    argv: Sequence[str], *, log: Path, output: Path | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Run it to its end; its standard output goes to `output` where one is named. It dies with this process.

    Raises ImageBuildError with the end of what it said.
    """
    with log.open("wb") as said, (output or Path("/dev/null")).open("wb") as result:
        try:
            code = subprocess.run(
                [*_ALONE, *argv],
                stdin=subprocess.DEVNULL,
                stdout=result if output else said,
                stderr=said,
                env=environment,
                timeout=STEP_SECONDS,
                check=False,
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ImageBuildError(f"{argv[0]} did not end as it should: {error}") from error
    if code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_SAID_LINES:])
        raise ImageBuildError(f"exit code {code} from {' '.join(argv)[:300]}\n{tail}")

"""`kubectl coil status`, from the options to the exit code."""

import asyncio
import time
from typing import Final

from kubectl_coil.options import Options
from kubectl_coil.output import print_document
from kubectl_coil.status.assessment import assess
from kubectl_coil.status.document import StatusDocument, Verdict
from kubectl_coil.status.snapshot import read_snapshot
from kubectl_coil.status.tables import render_status

PAUSE: Final = 2.0
"""Seconds between two looks of `--wait`."""


async def show_status(options: Options, *, wait: float) -> int:
    """Print it; the exit code is 0 if all is fine, 1 if not.

    With `wait`, look again until all is fine, for that many seconds at most; what is printed is the last look. While
    it waits, it goes on when the API server does not answer. Raises ApiError and AccessError.
    """
    document = await _look_until_fine(options, wait)
    print_document(document, options.output, lambda console: render_status(document, console))
    return 0 if document.verdict is Verdict.FINE else 1


async def _look_until_fine(options: Options, wait: float) -> StatusDocument:
    from coil.kube.errors import ApiError

    deadline = time.monotonic() + wait
    async with options.connect() as cluster:
        while True:
            last = time.monotonic() + PAUSE >= deadline
            try:
                document = assess(await read_snapshot(cluster))
                if last or document.verdict is Verdict.FINE:
                    return document
            except ApiError:
                if last:
                    raise
            await asyncio.sleep(PAUSE)

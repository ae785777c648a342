"""`kubectl coil sysdump`, from the options to the exit code."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from coil.page.document import render_json
from kubectl_coil.options import Options
from kubectl_coil.sysdump.archive import open_archive
from kubectl_coil.sysdump.collector import Collector
from kubectl_coil.sysdump.document import IndexDocument

INDEX = "index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """`path` None: a file in this folder, named by the time. `most` bounds how many nodes are asked, unless they are
    named; `limit` the dump, in bytes.
    """

    path: Path | None
    nodes: Sequence[str]
    most: int
    limit: int


async def write_sysdump(options: Options, wishes: Wishes) -> int:
    """Write it, and print where it is; the exit code is 0 if it has everything, 1 if something could not be read.

    Cancelled, it leaves no file. Raises ApiError, AccessError and OSError.
    """
    path = wishes.path or Path(f"coil-sysdump-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip")
    async with options.connect() as cluster:
        with open_archive(path, limit=wishes.limit) as archive, _progress() as progress:
            collector = Collector(cluster, archive, wishes.nodes, wishes.most, progress)
            at = await collector.collect()
            index = IndexDocument(
                version=version("coil"), at=at, files=tuple(archive.files), left_out=tuple(collector.left_out)
            )
            archive.add(INDEX, render_json(index).encode())
    sys.stdout.write(f"{path}\n")
    for file in index.files:
        if file.error:
            sys.stderr.write(f"kubectl coil: {file.name}: {file.error}\n")
    if index.left_out:
        sys.stderr.write(f"kubectl coil: {len(index.left_out)} nodes were not asked: name some with --node\n")
    return 0 if index.complete else 1


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda done, whole: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Collecting")
        yield lambda done, whole: bar.update(task, completed=done, total=whole)

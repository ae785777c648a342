"""Loads the kernel modules that nothing on a node asks for, so that no program that stays needs the right to do so.

A node whose kernel has none of them is a good node for all else: it is told, and nothing fails. coild says it again, to
the pod that wants them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from coil.netlink.error import NetlinkError
from coil.netlink.kernel_module import ModuleLoader, ensure_modules


def report_missing(
    names: Sequence[str], out: TextIO, *, loader: ModuleLoader | None = None, root: Path = Path("/sys/module")
) -> None:
    """Have each module in the kernel, or write a line that says why not and what to do. Idempotent."""
    for name in names:
        try:
            ensure_modules([name], loader=loader, root=root)
        except NetlinkError as error:
            print(f"coil-installer: {error}", file=out)

"""Outlives the owner of a cluster to clean up after it: ``python -m integration.cluster.guardian <id>``.

The owner holds the writing end of this process' standard input. A byte means that the owner has cleaned up, or has
let the cluster go, and there is nothing to do. End of file without one means that the owner died, by SIGKILL even.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import BinaryIO

from integration.cluster.cleanup import remove_cluster


def guard(arguments: Sequence[str], owner: BinaryIO) -> None:
    """Wait for the owner's word or death; on its death remove the cluster."""
    [cluster] = arguments
    if not owner.read(1):
        remove_cluster(cluster)


if __name__ == "__main__":
    guard(sys.argv[1:], sys.stdin.buffer)

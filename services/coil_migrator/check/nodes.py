"""Whether these programs run on the cluster's nodes."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from coil.crd.validation import render_names
from coil_migrator.check.cluster import Cluster
from coil_migrator.check.finding import Finding, Severity

ARCHITECTURES: Final = frozenset({"amd64", "arm64"})
UIDS_SINCE: Final = {"containerd": (1, 5, 5), "cri-o": (1, 22, 0)}
"""Runtimes that pass a pod's UID to plugins."""
ALTERNATIVE_NAMES_SINCE: Final = (5, 5)
SHOWN = 3

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


def check_nodes(cluster: Cluster) -> Iterator[Finding]:
    """Findings with the nodes that they are about."""
    nodes: defaultdict[tuple[Severity, str, str], list[str]] = defaultdict(list)
    for machine in cluster.machines:
        info = machine.status.node_info
        if info.architecture and info.architecture not in ARCHITECTURES:
            message = f"the image is for {' and '.join(sorted(ARCHITECTURES))}, not for {info.architecture}"
            nodes[Severity.MUST_MEND, message, "keep coild away from these nodes"].append(machine.metadata.name)
        runtime, _, version = info.container_runtime_version.partition("://")
        since = UIDS_SINCE.get(runtime)
        if since is not None and (found := _version(version)) is not None and found < since:
            message = f"{runtime} {version} does not pass UIDs of pods: each annotated pod is read from the API server"
            nodes[Severity.NOTE, message, ""].append(machine.metadata.name)
        kernel = _version(info.kernel_version)
        if kernel is not None and kernel[:2] < ALTERNATIVE_NAMES_SINCE:
            message = f"Linux {info.kernel_version}: a way back to Coil v2 takes new clients of Egresses"
            nodes[Severity.NOTE, message, ""].append(machine.metadata.name)
    for (severity, message, remedy), names in nodes.items():
        subject = f"Node{'s' if len(names) > 1 else ''} {render_names(names, shown=SHOWN)}"
        yield Finding(severity=severity, subject=subject, message=message, remedy=remedy)


def _version(text: str) -> tuple[int, int, int] | None:
    found = _VERSION.match(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))

"""What a cluster has left on the machine, looked for from outside: the oracle of the tests that nothing is left.

Deliberately not made of ``cleanup``'s functions: it looks for the cluster's id in everything that the kernel lists.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path


def traces(cluster: str) -> list[str]:
    """A line for each process, cgroup, mount, link and name with the cluster's id in it."""
    return [*_processes(cluster), *_cgroups(cluster), *_mounts(cluster), *_links(cluster), *_names(cluster)]


def network_namespaces() -> set[int]:
    """The inode numbers of all network namespaces that anything on this machine is in or holds on to."""
    listed = subprocess.run(
        ["lsns", "--json", "--type", "net", "--output", "NS"], check=True, capture_output=True, text=True, timeout=20
    )
    return {int(entry["ns"]) for entry in json.loads(listed.stdout)["namespaces"]}


def _processes(cluster: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            told = [(process / file).read_bytes() for file in ("cmdline", "environ", "cgroup")]
            # A zombie has none of the first two, and a namespace no longer.
            if told[0] and any(cluster.encode() in text for text in told):
                found.append(f"process {process.name}: {told[0].replace(bytes(1), b' ').decode(errors='replace')}")
    return found


def _cgroups(cluster: str) -> list[str]:
    return [f"cgroup {path}" for path in Path("/sys/fs/cgroup").rglob(f"*{cluster}*") if path.is_dir()]


def _mounts(cluster: str) -> list[str]:
    return [f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if cluster in line]


def _links(cluster: str) -> list[str]:
    listed = subprocess.run(["ip", "-json", "link"], check=True, capture_output=True, text=True, timeout=20)
    return [f"link {link['ifname']}" for link in json.loads(listed.stdout) if cluster in link["ifname"]]


def _names(cluster: str) -> list[str]:
    return [f"name {path}" for path in Path("/run/netns").glob(f"*{cluster}*")]

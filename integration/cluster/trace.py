"""What a cluster is to the machine, looked for from outside: the oracle of the tests that nothing is left of it.

Deliberately not made of ``cleanup``'s functions. A footprint is taken while the cluster runs, by following parents to
children from the processes that have its id in their arguments or environment; later it is asked what of it remains.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Footprint:
    """A cluster's processes (with their start times), their namespaces and cgroups, other than this process' own."""

    cluster: str
    processes: frozenset[tuple[int, str]]
    namespaces: frozenset[int]
    cgroups: frozenset[Path]

    @classmethod
    def take(cls, cluster: str) -> Footprint:
        """The footprint of a running cluster."""
        children = defaultdict(list)
        waiting = []
        for pid in _pids():
            with suppress(OSError):
                children[_parent(pid)].append(pid)
                told = [Path(f"/proc/{pid}/{file}").read_bytes() for file in ("cmdline", "environ")]
                if any(cluster.encode() in text for text in told):
                    waiting.append(pid)
        found = set()
        while waiting:
            pid = waiting.pop()
            if pid not in found:
                found.add(pid)
                waiting.extend(children[pid])
        own = _cgroups_of("self")
        return cls(
            cluster=cluster,
            processes=frozenset((pid, _start(pid)) for pid in found),
            namespaces=frozenset(_network_namespace(pid) for pid in found) - {_network_namespace("self"), 0},
            cgroups=frozenset(cgroup for pid in found for cgroup in _cgroups_of(pid)) - own,
        )

    def remains(self) -> list[str]:
        """A line for each thing that is still there, by the footprint or by the cluster's id in its name."""
        return [
            *(f"process {pid}" for pid, start in self.processes if _start(pid) == start),
            *(f"network namespace {namespace}" for namespace in self.namespaces & _listed_network_namespaces()),
            *(f"cgroup {cgroup}" for cgroup in self.cgroups if cgroup.exists()),
            *(f"cgroup {path}" for path in _cgroups() if self.cluster in path.name),
            *(f"mount {line}" for line in _mounts() if self.cluster in line),
            *(f"link {name}" for name in _links() if self.cluster in name),
            *(f"name {path}" for path in Path("/run/netns").glob(f"*{self.cluster}*")),
        ]


def _cgroups() -> Iterator[Path]:
    """All of the machine's; those of other clusters may go meanwhile, which os.walk passes over."""
    for folder, below, _ in os.walk("/sys/fs/cgroup"):
        yield from (Path(folder) / name for name in below)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _stat(pid: int) -> list[str]:
    """The fields of proc(5), stat, from the state on; the name before may have blanks in it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _start(pid: int) -> str:
    """When the process started, in clock ticks since boot; empty when it is gone or a zombie."""
    with suppress(OSError):
        fields = _stat(pid)
        return "" if fields[0] == "Z" else fields[19]
    return ""


def _network_namespace(pid: int | str) -> int:
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    return 0


def _cgroups_of(pid: int | str) -> set[Path]:
    """The folders of the process' cgroups, in whichever hierarchies are mounted where they usually are."""
    found = set()
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for mount in (controllers.removeprefix("name="), "unified", "."):
                folder = Path("/sys/fs/cgroup") / mount / path.lstrip("/")
                if path != "/" and folder.is_dir():
                    found.add(folder)
    return found


def _listed_network_namespaces() -> set[int]:
    listed = subprocess.run(
        ["lsns", "--json", "--type", "net", "--output", "NS"], check=True, capture_output=True, text=True, timeout=60
    )
    return {int(entry["ns"]) for entry in json.loads(listed.stdout)["namespaces"]}


def _mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def _links() -> list[str]:
    listed = subprocess.run(["ip", "-json", "link"], check=True, capture_output=True, text=True, timeout=60)
    return [link["ifname"] for link in json.loads(listed.stdout)]

"""Which tests go to one process where pytest has several (`--dist=loadfile`): those of a file, and those of a group."""

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]


def _modules(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"integration/{folder}/test_{name}.py" for name in names)


GROUPS = {
    "a stage of nodes with floating addresses": ("integration/eip/",),
    "an image": ("integration/image/",),
    "a node with Coil": _modules("apiserver", "bad_input", "coild", "coild_failure", "foreign_client", "regression"),
    "neighbours": _modules("apiserver", "metric", "route_export", "route_sync"),
    "a cluster for the pages": ("integration/docs/",),
    "a cluster without Coil": _modules("nodes", "cluster"),
    "a cluster whose programs come and go": _modules("nodes", "recovery", "release", "removal", "uninstall"),
    "a cluster for pods": ("integration/nodes/",),
    "Neutron": ("integration/neutron/",),
}
"""Tests that share what is costly to start, by the beginnings of their names; the first group that fits counts.

A Neutron or Octavia keeps a processor busy, where other tests wait: several at a time would make each other's calls
time out.
"""


class SchedulingByGroup(LoadFileScheduling):  # type: ignore[misc]
    """The tests of a group run in one process, in their order."""

    def _split_scope(self, nodeid: str) -> str:
        group = next((group for group, places in GROUPS.items() if nodeid.startswith(places)), None)
        return group or str(super()._split_scope(nodeid))


def make_scheduler(config: pytest.Config, log: Producer) -> SchedulingByGroup | None:
    """Of a run with `--dist=loadfile`; None for another, whose scheduler is that of pytest-xdist."""
    return SchedulingByGroup(config, log) if config.getoption("dist") == "loadfile" else None

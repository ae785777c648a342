"""The sessions of `make test` and of `make test-all`, and which of them run at the same time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Steps: TypeAlias = Sequence[Sequence[str]]
"""Sessions in their order; those of one step run side by side."""

FINAL: Final = frozenset({"integration/eip/test_hostile_tenant.py"})
"""Modules that are not run once more: what they do is drawn at random, so one failure has found a defect, and a second
run that passes has only not met it. Not even the same seed helps: when others see what is done is left to chance.
"""

RECORD: Final = "access"
"""The session that judges what all others have recorded, so it comes after what is repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """`reruns` is how many modules that fail are run once more, alone; if more fail, the run has failed as it is."""

    command: str
    steps: Steps
    reruns: int


_DEFAULT: Final = (
    ("lint",),
    ("types",),
    ("contracts",),
    ("unit",),
    ("integration",),
    # One computes, in a virtual machine with busy processors; the other waits most of its time.
    ("egress", "cluster"),
)

TEST: Final = Layer(command="make test", steps=_DEFAULT, reruns=6)
TEST_ALL: Final = Layer(
    command="make test-all",
    steps=(
        *_DEFAULT,
        ("explore",),
        ("slow",),
        ("cluster_slow",),
        ("egress_slow",),
        ("egress_ipv6_first",),
        ("egress_ipv4_only",),
        ("egress_ipv6_only",),
        ("egress_ipvs",),
        ("aws_nodes",),
        ("aws_simulation",),
        ("neutron_nodes",),
        ("kernel_guest",),
        ("egress_kubelet",),
        # With nothing beside it: here the machine's speed decides.
        ("timing",),
    ),
    reruns=0,
)

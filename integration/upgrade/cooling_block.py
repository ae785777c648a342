"""A block in which addresses are cooling down: what coild's journal alone knows of it, before and after another coild.

Five of its eight slots were given to pods one after the other, then the third and the fifth were given back. A coild
that has lost the journal would begin at the first free slot; one that has it goes on behind the last that was given.
"""

from dataclasses import dataclass
from typing import Any, Final

from integration.nodes.coil_cluster import CoilCluster, Room
from integration.patience import wait_until
from integration.upgrade.scene import inspect

BITS: Final = 3
FIRST: Final = [f"first-{number}" for number in range(5)]
GONE: Final = ("first-2", "first-4")
NEXT: Final = [f"next-{number}" for number in range(4)]


@dataclass(frozen=True, slots=True)
class CoolingBlock:
    """Made by `prepare`, on the first node."""

    room: Room

    @classmethod
    def prepare(cls, coil: CoilCluster) -> "CoolingBlock":
        """Two of its addresses are cooling down."""
        block = cls(coil.make_room(bits=BITS))
        block.add(FIRST)
        block.room.kubectl("delete", "pod", *GONE, "--timeout=180s")
        wait_until(lambda: block.cooling() == [2, 4], what="two addresses are cooling down")
        return block

    def add(self, pods: list[str]) -> None:
        """One after the other, so that each gets the slot that is next."""
        for pod in pods:
            self.room.create(self.room.pod(pod, self.room.coil.nodes[0]))
            self.room.wait_ready(pod)

    def slots(self) -> dict[str, tuple[int, int]]:
        """By pod, the block's index and the slot."""
        return {
            use["pod"]: (block["index"], use["slot"])
            for block in self._blocks()
            for use in block["used"]
            if use["state"] == "allocated"
        }

    def cooling(self) -> list[int]:
        """The slots of the first block that are cooling down."""
        [first, *_] = self._blocks()
        return sorted(use["slot"] for use in first["used"] if use["state"] == "cooling")

    def _blocks(self) -> list[dict[str, Any]]:
        pools = [pool for pool in inspect(self.room.coil.nodes[0]) if pool["name"] == self.room.pool]
        return [block for pool in pools for block in sorted(pool["blocks"], key=lambda block: int(block["index"]))]

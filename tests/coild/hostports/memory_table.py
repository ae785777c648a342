"""A `HostPortTable` in memory; `HostPortTableContract` holds for it as for the kernel's."""

from collections.abc import Mapping

from coil.kernel.family import IPAddress
from tests.coild.memory_table import MemoryTable


class MemoryHostPortTable(MemoryTable):
    """`forgotten` is what conntrack was to forget."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[dict[IPAddress, frozenset[int]]] = []

    async def forget_udp(self, ports: Mapping[IPAddress, frozenset[int]]) -> None:
        self.forgotten.append(dict(ports))

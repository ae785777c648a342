"""The Octavia in memory does what the real one does."""

import pytest

from coil.neutron.resource import SubnetId
from coil.openstack.octavia import Octavia
from tests.coil.openstack.memory_octavia import MemoryOctavia
from tests.coil.openstack.octavia_contract import OctaviaContract


class TestMemoryOctavia(OctaviaContract):
    @pytest.fixture
    def octavia(self) -> Octavia:
        self.memory = MemoryOctavia()
        return self.memory

    @pytest.fixture
    def subnet(self) -> SubnetId:
        return SubnetId("the subnet of VIPs")

    @pytest.fixture
    def name(self) -> str:
        return "coil:stage:lb:1"

    def hold(self) -> None:
        """It always does."""

    def settle(self) -> None:
        """See `OctaviaContract`."""
        self.memory.settle()

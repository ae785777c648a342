"""The Neutron in memory does what the real one does."""

import pytest

from coil.openstack.neutron import Neutron
from tests.coil.openstack.memory_neutron import MemoryNeutron
from tests.coil.openstack.neutron_contract import HOST, NeutronContract


class TestMemoryNeutron(NeutronContract):
    @pytest.fixture
    def neutron(self) -> Neutron:
        return MemoryNeutron(hosts=[HOST])

    @pytest.fixture
    def name(self) -> str:
        return "coil:stage:net:1"

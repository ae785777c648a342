"""Bindings of this process that hand a pod's link to a switch on the node: where its socket was given."""

from structlog.typing import FilteringBoundLogger

from coild.neutron.binding import Binding
from coild.neutron.midonet import MIDONET, MidonetBinding
from coild.neutron.openvswitch import OPENVSWITCH, OpenVSwitchBinding
from coild.settings import Settings


def switch_bindings(settings: Settings, *, log: FilteringBoundLogger) -> dict[str, Binding]:
    """By the types of ports that they plug in."""
    made: dict[str, Binding] = {}
    if (socket := settings.neutron_openvswitch_socket) is not None:
        made[OPENVSWITCH] = OpenVSwitchBinding(socket, bridge=settings.neutron_openvswitch_bridge, log=log)
    if (socket := settings.neutron_midolman_socket) is not None:
        made[MIDONET] = MidonetBinding(socket)
    return made

"""A mechanism driver of ML2 for networks that coild's bridges carry: binds ports of the hosts that are told.

A port of a host that is not among them stays "binding_failed", as without a live agent. A bound port is DOWN until
`neutron_api` is told that it is plugged in.
"""

from typing import Any

from neutron_lib import constants
from neutron_lib.api.definitions import portbindings
from neutron_lib.plugins.ml2 import api
from oslo_config import cfg

cfg.CONF.register_opts([cfg.ListOpt("hosts", default=[])], group="plugged")


class PluggedMechanismDriver(api.MechanismDriver):  # type: ignore[misc]
    """See the module."""

    def initialize(self) -> None:
        """See `MechanismDriver`."""

    def bind_port(self, context: Any) -> None:
        """See `MechanismDriver`."""
        if context.host not in cfg.CONF.plugged.hosts:
            return
        for segment in context.segments_to_bind[:1]:
            details = {portbindings.CAP_PORT_FILTER: True}
            context.set_binding(segment[api.ID], "bridge", details, constants.PORT_STATUS_DOWN)

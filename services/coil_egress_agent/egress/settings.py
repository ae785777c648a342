"""What the Deployment of an Egress tells its router pods. The names and defaults are those of Coil v2; some are new."""

from dataclasses import dataclass
from ipaddress import ip_address

from coil.crd.names import is_object_name
from coil.egress.client_pod import EgressRef
from coil.egress.gateway import RouterSpec, TunnelPolicy
from coil.kernel.family import Family, IPAddress
from coil.runtime.flag import (
    Endpoint,
    Group,
    flag,
    kind,
    parse_duration,
    parse_integer,
    parse_period,
    variable,
)
from coil.runtime.settings import ApiSettings, FrameSettings, health_flag, metrics_flag, parse_namespace


@kind("NAME")
def parse_egress_name(text: str) -> str:
    """The name of an Egress."""
    if not is_object_name(text):
        raise ValueError("the name of an Egress")
    return text


@kind("ADDR[,ADDR]")
def parse_addresses(text: str) -> tuple[IPAddress, ...]:
    """One address, or one of each family between a comma, as a pod's `status.podIPs` is given to its containers."""
    try:
        addresses = tuple(ip_address(part.strip()) for part in text.split(","))
    except ValueError:
        addresses = ()
    if not addresses or len({Family.of(address) for address in addresses}) < len(addresses):
        raise ValueError('an address, or one of each family, such as "10.1.2.3,fd00::3"')
    return addresses


@dataclass(frozen=True, kw_only=True)
class Settings(ApiSettings, FrameSettings):
    """coil-egress-agent's settings; times are in seconds."""

    metrics_addr: Endpoint = metrics_flag(":8080")
    health_addr: Endpoint = health_flag(":8081")
    namespace: str = variable("COIL_POD_NAMESPACE", parse=parse_namespace, help="the Egress's namespace")
    name: str = variable("COIL_EGRESS_NAME", parse=parse_egress_name, help="the Egress's name")
    addresses: tuple[IPAddress, ...] = variable(
        "COIL_POD_ADDRESSES", parse=parse_addresses, help="the pod's own addresses, between a comma (status.podIPs)"
    )
    egress_port: int = flag(
        "5555", parse=parse_integer(1, 65535), group=Group.EGRESS, help="UDP port of the tunnels, at both ends"
    )
    resync_interval: float = flag(
        "5m", parse=parse_period, group=Group.PROCESS, help="how often the kernel is compared with what it should hold"
    )
    drain: float = flag(
        "3s",
        parse=parse_duration,
        group=Group.EGRESS,
        help="how long packets are forwarded after a stop was asked for, while others learn that this pod is not ready "
        "any more; at most half of --stop-timeout",
    )

    @property
    def egress(self) -> EgressRef:
        return EgressRef(self.namespace, self.name)

    @property
    def router_spec(self) -> RouterSpec:
        return RouterSpec(addresses=self.addresses, policy=TunnelPolicy(port=self.egress_port))

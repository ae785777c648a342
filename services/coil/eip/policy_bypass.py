"""Data planes of other programs that may carry pods' packets past policies: told by their links, as nothing else of
them can be seen without rights to load BPF programs. Pure.

Sources: Cilium's guide to upgrading (1.9, "host routing") and its chart (`bpf.hostLegacyRouting`); "About eBPF" in
Calico's documentation; `net/netfilter/ipvs/ip_vs_core.c`, whose hook for packets to an address of the node is LOCAL_IN:
they leave again as the node's own, and never pass the hook FORWARD.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from coil.crd.condition_text import fit_sentences
from coil.crd.meta import Condition
from coil.kernel.link import LinkName

POLICIES_BYPASSED: Final = "PoliciesBypassed"
"""The condition's type. True: what pods send passes no policy. Unknown: some of it may not, which depends on what the
node does not show.
"""


@dataclass(frozen=True, slots=True)
class _DataPlane:
    certain: bool
    advice: str


_CALICO_BPF: Final = _DataPlane(
    True, "Calico's eBPF data plane forwards pods' packets past netfilter: policies need another one of Calico's"
)
_DATA_PLANES: Final[Mapping[LinkName, _DataPlane]] = {
    LinkName("cilium_host"): _DataPlane(
        False, "Cilium forwards pods' packets past netfilter unless its value bpf.hostLegacyRouting is true"
    ),
    LinkName("bpfin.cali"): _CALICO_BPF,
    LinkName("bpfnatin"): _CALICO_BPF,
    LinkName("kube-ipvs0"): _DataPlane(
        False,
        "kube-proxy in IPVS mode sends what is for a ClusterIP past policies: endpoints outside the cluster see the "
        "node's address",
    ),
}
"""By a link that it has on every node; Calico's has had two names."""


def bypass_condition(links: Collection[LinkName]) -> Condition:
    """Of a node with these links."""
    found = [plane for link, plane in _DATA_PLANES.items() if link in links]
    if not found:
        text = "no data plane that is known to do so has links on this node"
        return Condition(type=POLICIES_BYPASSED, status="False", reason="NotFound", message=text)
    status = "True" if any(plane.certain for plane in found) else "Unknown"
    message = fit_sentences([plane.advice for plane in found])
    return Condition(type=POLICIES_BYPASSED, status=status, reason="DataPlaneFound", message=message)

"""The result of an ADD as the CNI specification writes it, always in the format of 1.0.0.

Pure: from the plan that was carried out to a JSON document. https://www.cni.dev/docs/spec/. Every plugin of Coil v2
reads that version, some no other, and converts it to what the network configuration asks for (cni.proto, AddResponse).
"""

from typing import Any

import msgspec

from coil.kernel.family import Family
from coil.kernel.route import DEFAULT_NETWORKS
from coil.podnet.plan import PodPlan

VERSION = "1.0.0"

POD_INTERFACE = 0
"""The pod's end comes first in `interfaces`; every address belongs to it."""


def render_result(plan: PodPlan, *, netns: str) -> bytes:
    """The JSON of the result. `netns` is the pod's network namespace, as the runtime named it."""
    ips: list[dict[str, Any]] = []
    routes: list[dict[str, str]] = []
    for assignment in plan.assignments:
        address, gateway = assignment.address, str(assignment.gateway)
        ips.append({"interface": POD_INTERFACE, "address": f"{address}/{address.max_prefixlen}", "gateway": gateway})
        routes.append({"dst": str(DEFAULT_NETWORKS[Family.of(address)]), "gw": gateway})
    interfaces = [
        {"name": plan.pod.name, "mac": plan.pod.mac, "sandbox": netns},
        {"name": plan.host.name, "mac": plan.host.mac},
    ]
    return msgspec.json.encode(
        {"cniVersion": VERSION, "interfaces": interfaces, "ips": ips, "routes": routes, "dns": {}}
    )

"""Where Coil is installed."""

from typing import Final

from coil.crd.builtin import CLUSTER_ROLE_BINDINGS
from coil.kube.errors import NotFoundError
from kubectl_coil.cluster import Reader

COILD: Final = "coild"
EIP_AGENT: Final = "coil-egress-node"
_ACCOUNTS: Final = (COILD, EIP_AGENT)
"""Of what runs on each node. An installation of EIP gateways only has no coild."""


async def find_homes(cluster: Reader) -> list[str]:
    """The namespace that Coil is installed in, or none. Raises ApiError.

    Labels and names of workloads do not tell it: whoever may create a Deployment somewhere can give it Coil's. A
    ClusterRoleBinding is an administrator's, and its name is the same in each installation.
    """
    for account in _ACCOUNTS:
        try:
            binding = await cluster.get(CLUSTER_ROLE_BINDINGS, account)
        except NotFoundError:
            continue
        return [subject.namespace for subject in binding.subjects or () if subject.name == account]
    return []

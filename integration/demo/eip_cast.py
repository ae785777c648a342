"""Who plays in the demo's EIP gateway: what is on the stage once the policy is placed."""

from dataclasses import dataclass

from integration.demo.gateway_row import HEADER, read_gateway, render_rows
from integration.demo.narration import print_table
from integration.eip.pod import Pod
from integration.eip.world import Gateway, Policy, World

GATEWAYS = ("n1", "n2")
"""The nodes with the label that the EgressGateway selects."""
CLIENT_NODE = "n3"
LABELS = {"app": "shop"}
NODE_LABELS = {"egress": "true"}
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays. `chosen` is the pod that the policy means."""

    world: World
    gateway: Gateway
    policy: Policy
    chosen: Pod
    plain: Pod

    @property
    def eips(self) -> dict[int, str]:
        return {family: self.policy.eip(family) for family in (4, 6)}

    @property
    def names(self) -> dict[str, str]:
        """Who has an address that the server may see."""
        nodes = {address: f"node {node.name}" for node in self.world.nodes for address in node.addresses.values()}
        return {**nodes, **dict.fromkeys(self.eips.values(), f"the EIP of {self.policy.name}")}


def show_gateway(cast: Cast) -> None:
    """Its status, as it is now."""
    rows = read_gateway(cast.world.api.get(cast.gateway.path))
    print_table(HEADER, render_rows(cast.gateway.name, rows))

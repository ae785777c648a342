"""What the stage is told of its control plane, by a file where that is on another machine."""

from dataclasses import dataclass
from pathlib import Path

from integration.cluster.family import ClusterFamilies
from integration.egress.description import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Description(Stage):
    """And the account of the agents, and the cluster's IP families."""

    agent_kubeconfig: Path
    families: ClusterFamilies

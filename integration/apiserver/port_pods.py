"""Pods in a real API server that are ports of networks: the test plays coil-raven, which annotates them."""

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from coil.neutron.handoff import ANNOTATION_PORT, render_handoff
from integration.apiserver.bare_node import BareNode
from integration.apiserver.sandbox import PodName
from integration.cluster.control_plane import ControlPlane
from tests.coild.neutron.port_node import handoff

APPS = "apps"


@dataclass
class PortPods:
    """Make it with `prepare`. `numbers` has the port of each pod (`tests.coild.neutron.port_node.handoff`)."""

    plane: ControlPlane
    numbers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def prepare(cls, node: BareNode) -> "PortPods":
        """With the pods' namespace."""
        node.make_namespace(APPS)
        return cls(node.plane)

    def make(self, node: BareNode) -> PodName:
        """A pod of that node, with the next port, which it is not told yet."""
        pod = node.make_pod(APPS, f"pod-{secrets.token_hex(3)}")
        self.numbers[pod.name] = len(self.numbers) + 1
        return pod

    def annotate(self, pod: PodName, text: str | None = None, **changes: Any) -> None:
        """As coil-raven does it, or with any text."""
        if text is None:
            text = render_handoff(handoff(self.numbers[pod.name], pod.uid, **changes))
        patch = json.dumps({"metadata": {"annotations": {ANNOTATION_PORT: text}}})
        self.plane.kubectl("patch", "pod", pod.name, f"--namespace={APPS}", "--type=merge", f"--patch={patch}")

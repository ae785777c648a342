"""Coil v2's own coild on a node of the stage, with the command line and the rights that its manifests give it.

Its programs and manifests are there where the environment asked for them before the guest was started.
"""

import os
from pathlib import Path
from typing import Any, Final

import yaml

from integration.cluster.programs import Program
from integration.egress.outside import EGRESS_NAMESPACE
from integration.egress.station import Station
from integration.egress.world import World

COIL_V2_VARIABLE: Final = "COIL_V2"
"""Environment variable: not empty if the programs are wanted; in the guest, the folder that has them."""

_ROLES: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
_BINDINGS: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_COILD: Final = {"kind": "ServiceAccount", "name": "coild", "namespace": "kube-system"}
_ROUTER: Final = {"kind": "ServiceAccount", "name": "coil-egress", "namespace": EGRESS_NAMESPACE}


def programs_of_coil_v2() -> Path:
    """The folder with programs and manifests."""
    named = os.environ.get(COIL_V2_VARIABLE)
    assert named, f"these tests need {COIL_V2_VARIABLE}=1 in the environment, as `nox -s egress_slow` has it"
    return Path(named)


def grant_coil_v2(world: World) -> None:
    """Give the accounts of coild and of router pods the roles that they have in Coil v2 as well. Idempotent."""
    for manifest, subject in (("coild_role.yaml", _COILD), ("coil-egress_role.yaml", _ROUTER)):
        role, name = _read(f"rbac/{manifest}"), f"coil-v2-{subject['name']}"
        if world.api.find(f"{_ROLES}/{name}") is None:
            world.api.create(_ROLES, {**role, "metadata": {"name": name}})
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
            world.api.create(_BINDINGS, {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]})


def go_coild_command(world: World, station: Station, *flags: str, manifest: str = "coild.yaml") -> list[str]:
    """How a manifest of config/pod starts it; `flags` come after the manifest's."""
    [container] = _read(f"pod/{manifest}")["spec"]["template"]["spec"]["containers"]
    return [
        *("env", f"KUBECONFIG={world.description.coild_kubeconfig}"),
        str(programs_of_coil_v2() / Program.COIL_V2_COILD),
        *container["args"],
        f"--socket={station.wired.socket}",
        *flags,
    ]


def _read(manifest: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((programs_of_coil_v2() / "config" / manifest).read_text())
    return document

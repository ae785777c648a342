"""Certificates that somebody has written over, for the tests of both controllers' webhooks."""

import json
from typing import Any

from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until

_NONSENSE = "bm9uc2Vuc2U="


def spoil_certificates(plane: ControlPlane, name: str) -> None:
    """Write over what a controller serves with, in that Secret of kube-system; return when it has mended that."""

    def read() -> dict[str, Any]:
        said = plane.kubectl("get", "secret", name, "--namespace=kube-system", "--output=json")
        found: dict[str, Any] = json.loads(said)
        return found

    before = read()
    spoilt = json.dumps({"data": {"tls.crt": _NONSENSE}})
    plane.kubectl("patch", "secret", name, "--namespace=kube-system", f"--patch={spoilt}")
    wait_until(lambda: read()["data"]["tls.crt"] != _NONSENSE, what="another certificate")
    # Written, not made anew: others' labels and owners stay.
    assert read()["metadata"]["uid"] == before["metadata"]["uid"]

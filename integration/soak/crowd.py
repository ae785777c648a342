"""Many pods that come and go as fast as one coild takes them: its socket is called as the plugin calls it.

The plugin's own client, but no process for each call: that would cost more than all that coild does.
"""

import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from coil_cni.grpc import connect
from coil_cni.invocation import Invocation
from coil_cni.netconf import NetConf
from coil_cni.service import ask
from integration.apiserver.sandbox import Sandbox
from tests.coil_cni.edges import refuse_record

PATIENCE = 60.0
"""Seconds for one call, as the plugin has."""

FAMILIES = 2


class Crowd:
    """One pod at a time in each sandbox, all sandboxes at once. Every pod has a name and a container ID of its own."""

    def __init__(self, socket: Path, sandboxes: Iterable[Sandbox], *, namespace: str) -> None:
        self._socket = socket
        self._sandboxes = list(sandboxes)
        self._namespace = namespace
        self._serials = count(1)

    def come_and_go(self, pods: int) -> None:
        """So many times ADD and DEL. Raises CniError for the first that fails, or AssertionError."""
        share, more = divmod(pods, len(self._sandboxes))
        with ThreadPoolExecutor(len(self._sandboxes)) as pool:
            works = [
                pool.submit(self._live, sandbox, share + (number < more))
                for number, sandbox in enumerate(self._sandboxes)
            ]
        for work in works:
            work.result()

    def _live(self, sandbox: Sandbox, pods: int) -> None:
        for _ in range(pods):
            serial = next(self._serials)
            added = self._ask("ADD", sandbox, serial)
            assert len(json.loads(added)["ips"]) == FAMILIES, added
            self._ask("DEL", sandbox, serial)

    def _ask(self, command: str, sandbox: Sandbox, serial: int) -> bytes:
        container = f"{serial:064x}"
        variables = {
            "CNI_CONTAINERID": container,
            "CNI_NETNS": sandbox.netns,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin",
        }
        pod = {
            "K8S_POD_NAMESPACE": self._namespace,
            "K8S_POD_NAME": f"pod-{serial}",
            "K8S_POD_INFRA_CONTAINER_ID": container,
            "K8S_POD_UID": f"00000000-0000-0000-0000-{serial:012x}",
        }
        conf = NetConf("1.0.0", str(self._socket), None)
        stdin = json.dumps({"cniVersion": "1.0.0", "name": "pods", "type": "coil"}).encode()
        deadline = time.monotonic() + PATIENCE
        return ask(
            connect, Invocation(command, variables, pod), conf, stdin, deadline=deadline, record_delete=refuse_record
        )

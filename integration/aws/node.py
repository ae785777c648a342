"""An instance that is a node: coild with addresses of its interfaces, the plugin, a Node object, and pods.

Everything that coild needs of AWS it finds as on AWS: the metadata service at its address, credentials there, EC2 at
the endpoint that it is told.
"""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from coil.kernel.family import IPAddress
from integration.apiserver.runtime import TRY_AGAIN_LATER, CniError, Runtime, addresses_of
from integration.apiserver.sandbox import PodName, Sandbox
from integration.apiserver.wired_node import PodHost
from integration.aws.ec2_state import Interface
from integration.aws.instance import Instance
from integration.aws.strict_ec2 import StrictEc2
from integration.aws.vpc import Host
from integration.cluster.control_plane import ControlPlane
from integration.cluster.workspace import Workspace
from integration.deployment import apply, coild_command
from integration.patience import wait_until
from integration.service import Service

CLUSTER: Final = "test"
NAMESPACE: Final = "default"
_FETCH: Final = (
    *("curl", "--silent", "--noproxy", "*"),
    *("--retry-connrefused", "--retry", "5", "--retry-delay", "1"),
)
_METRICS_PORT: Final = 9384
_MANY: Final = 30


@dataclass(frozen=True, slots=True)
class EniPod:
    """A sandbox whose ADD has succeeded. `result` is what the runtime keeps of it."""

    node: "EniNode"
    sandbox: Sandbox
    result: dict[str, Any]

    @property
    def address(self) -> IPAddress:
        [address] = addresses_of(self.result)
        return ip_address(address)

    @property
    def host(self) -> Host:
        """Its own namespace."""
        return Host(Path(self.sandbox.netns))

    @property
    def interface(self) -> Interface:
        """The one that has its address, as EC2 has it now."""
        found = self.node.instance.interfaces
        return next(each for each in found if any(self.address in network for network in each.networks))

    @property
    def link(self) -> str:
        """The name of that interface on the node."""
        return f"eth{self.interface.device}"

    def check(self) -> None:
        """CHECK. Raises CniError."""
        self.node.runtime.check(self.sandbox, cached=self.result)

    @property
    def cools_down(self) -> bool:
        """Whether coild says that of its address now."""
        used = [each for interface in self.node.page()["interfaces"] for each in interface["used"]]
        return any(each["address"] == str(self.address) and each["state"] == "cooling" for each in used)

    def delete(self) -> None:
        """DEL, and the sandbox goes."""
        self.node.runtime.delete(self.sandbox, cached=self.result)
        self.sandbox.destroy()


class EniNode(PodHost):
    """coild is started by `start_coild`; its journal is on what stands for the instance's disk."""

    def __init__(self, workspace: Workspace, plane: ControlPlane, ec2: StrictEc2, instance: Instance) -> None:
        super().__init__(workspace, name=instance.name)
        self.instance = instance
        self.namespaces = instance.namespaces
        self.runtime: Runtime = self.install_plugin()
        self.coild: Service
        self._plane = plane
        self._ec2 = ec2
        self._pods: list[EniPod] = []
        apply(plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}})
        self.report(pods=110)

    @property
    def host(self) -> Host:
        return self.instance.host

    @property
    def journal(self) -> Path:
        """coild's."""
        return self.socket.with_suffix(".journal")

    @property
    def deletes(self) -> list[str]:
        """The DELs that the plugin has recorded and coild has not carried out."""
        folder = self.socket.with_name(f"{self.socket.name}.deletes")
        return [each.name for each in folder.iterdir()] if folder.is_dir() else []

    def start_coild(self, *flags: str) -> None:
        """coild; returns when it takes calls."""
        self.coild = self.start_daemon(self.coild_command(*flags))
        self.coild.wait_ready()

    def coild_command(self, *flags: str) -> list[str]:
        """Its command line."""
        own = ("--address-source=aws-eni", f"--cluster-name={CLUSTER}", f"--ec2-endpoint={self._ec2.endpoint}")
        return coild_command(self._plane, socket=self.socket, flags=(*own, *flags))

    @contextmanager
    def running_coild(self, *flags: str) -> Iterator[None]:
        """coild until the end of the block; the pods that are left then go first, and nothing is remembered of them."""
        self.start_coild(*flags)
        try:
            yield
        finally:
            self.coild.ensure_running()
            for pod in self._pods:
                pod.delete()
            self._pods.clear()
            self.coild.process.stop()
            self.journal.unlink(missing_ok=True)

    def reboot(self) -> None:
        """Without a word to anybody. coild is left to be started again; what was on no disk is gone."""
        self.coild.kill()
        self.destroy_sandboxes()
        self.instance.stop()
        self.socket.unlink(missing_ok=True)
        self.instance.start()
        self.namespaces = self.instance.namespaces

    def report(self, *, pods: int) -> None:
        """Set in the Node object, as a kubelet does, how many pods the node may run."""
        addresses = [{"type": "InternalIP", "address": str(self.instance.primary)}]
        status = {"addresses": addresses, "allocatable": {"pods": str(pods)}, "capacity": {"pods": str(pods)}}
        patch = json.dumps({"status": status})
        self._plane.kubectl("patch", "node", self.name, "--subresource=status", "--type=merge", f"--patch={patch}")

    def conditions(self) -> dict[str, dict[str, Any]]:
        """Of its Node object, by type."""
        status = self._plane.read(f"/api/v1/nodes/{self.name}")["status"]
        return {each["type"]: each for each in status.get("conditions", [])}

    def metrics(self) -> dict[str, int]:
        """What coild counts of the node's interfaces, by name, without what it counts by label."""
        families = text_string_to_metric_families(self.fetch(_METRICS_PORT, "/metrics"))
        samples = [sample for family in families for sample in family.samples]
        own = [each for each in samples if each.name.startswith("coil_node_eni_") and not each.labels]
        return {each.name: int(each.value) for each in own}

    def events(self, reason: str) -> list[dict[str, Any]]:
        """Of its Node object, with that reason."""
        found = self._plane.read("/api/v1/namespaces/default/events")["items"]
        mine = [each for each in found if each["involvedObject"]["kind"] == "Node"]
        return [each for each in mine if (each["involvedObject"]["name"], each["reason"]) == (self.name, reason)]

    def page(self) -> dict[str, Any]:
        """What coild says of the node at its inspection address, which is there a moment after coild is ready."""
        text = self.kernel.run(*_FETCH, "http://127.0.0.1:6666/ip-manager")
        document: dict[str, Any] = json.loads(text)
        return document

    def wait_addresses(self, count: int) -> None:
        """Return when coild has so many single addresses for pods, on links that are up."""

        def counted() -> int:
            return sum(len(each["ranges"]) for each in self.page()["interfaces"] if each["up"])

        wait_until(lambda: counted() == count, what=f"{self.name} has {count} addresses for pods")

    def sandbox(self) -> Sandbox:
        """Of a new pod, before its ADD."""
        pod = PodName(NAMESPACE, f"pod-{secrets.token_hex(3)}", uid=_random_uid())
        return self.make_sandbox(pod, container_id=secrets.token_hex(32))

    def add_pod(self) -> EniPod:
        """A new pod, tried again as a kubelet does it for as long as it is to be tried again."""
        sandbox = self.sandbox()
        done: list[dict[str, Any]] = []

        def attempt() -> bool:
            with suppress(_LaterError):
                done.append(self._add(sandbox))
            return bool(done)

        wait_until(attempt, what=f"{sandbox.pod.name} comes up on {self.name}")
        pod = EniPod(self, sandbox, done[0])
        self._pods.append(pod)
        self.instance.wait_up(pod.interface)
        return pod

    @contextmanager
    def pod(self) -> Iterator[EniPod]:
        """A pod until the end of the block."""
        made = self.add_pod()
        try:
            yield made
        finally:
            made.delete()

    def pods_on(self, *devices: int) -> list[EniPod]:
        """New pods until each of these interfaces has one, by their numbers; those first, the others after them."""
        pods: list[EniPod] = []
        while missing := set(devices) - {pod.interface.device for pod in pods}:
            assert len(pods) < _MANY, f"no pod on interface {missing}"
            pods.append(self.add_pod())
        chosen = [next(pod for pod in pods if pod.interface.device == device) for device in devices]
        return [*chosen, *(pod for pod in pods if pod not in chosen)]

    def _add(self, sandbox: Sandbox) -> dict[str, Any]:
        try:
            return self.runtime.add(sandbox)
        except CniError as error:
            if error.code == TRY_AGAIN_LATER:
                raise _LaterError from error
            raise


class _LaterError(Exception):
    """An ADD has failed, and may succeed later."""


def _random_uid() -> str:
    digits = secrets.token_hex(16)
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

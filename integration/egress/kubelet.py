"""The kubelets of all nodes of the stage, and the scheduler: the API server's pods become sandboxes, and their states.

One look at a time, by `sync`, in the caller's thread: under emulation a loop that never rests would take the time of
the programs under test. A router pod's process is the real agent, as the pod's template starts it, with what a
container has: its service account's token, read-only sysctls, and no capability but the one that it is given.
"""

import http.client
import logging
import os
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from integration.apiserver.runtime import CniError, addresses_of
from integration.apiserver.sandbox import PodName
from integration.cluster.process import Process
from integration.cluster.workspace import Workspace
from integration.egress.api import Api, ApiError, Document
from integration.egress.description import Description
from integration.egress.outside import NAMESPACES
from integration.egress.pod import RunningPod
from integration.egress.station import PATIENCE, PAUSE, Station
from integration.netns.netns import call_inside
from integration.patience import wait_until
from integration.walk.recording import Recording

_HEALTH_PORT = 8081
_FINISHED = "Succeeded"
_ACCOUNT_FOLDER = "/run/secrets/kubernetes.io/serviceaccount"
_MOUNTS = f"""
set -e
mount -t tmpfs tmpfs /run
mkdir -p {_ACCOUNT_FOLDER}
mount --bind "$1" {_ACCOUNT_FOLDER}
shift
"""
_PRIVILEGED_CONTAINER = f'{_MOUNTS}exec "$@"'
_CONTAINER = f"""{_MOUNTS}
mount --bind -o ro /proc/sys /proc/sys
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,+net_admin -- "$@"
"""


_log = logging.getLogger("kubelet")


class Kubelet:
    """Runs the pods of the namespaces of the stage."""

    def __init__(self, workspace: Workspace, description: Description, api: Api, stations: Sequence[Station]) -> None:
        self._workspace = workspace
        self._description = description
        self._api = api
        self._stations = {station.name: station for station in stations}
        self._schedulable = list(self._stations)
        self._pods: dict[str, RunningPod] = {}
        self.refusals: dict[str, list[CniError]] = {}
        """By UID of the pod, why its ADDs failed. Each look at the pod tries again."""
        self._recording: Recording | None = None
        self._program: Path | None = None

    @property
    def pods(self) -> list[RunningPod]:
        """Those that run, oldest first."""
        return list(self._pods.values())

    def sync(self) -> None:
        """Look at all pods once: start, report, end."""
        found = {
            pod["metadata"]["uid"]: pod
            for namespace in NAMESPACES
            for pod in self._api.items(f"/api/v1/namespaces/{namespace}/pods")
        }
        for uid, pod in list(self._pods.items()):
            if uid not in found or "deletionTimestamp" in found[uid]["metadata"]:
                self._end(pod)
        for document in found.values():
            if "deletionTimestamp" in document["metadata"] or document["status"].get("phase") == _FINISHED:
                continue
            try:
                self._sync_pod(document)
            except ApiError as error:
                # It was deleted after the list was made; the next look ends it here.
                if error.status != http.client.NOT_FOUND:
                    raise
                _log.info("%s: %s", document["metadata"]["name"], error)

    def wait_until(self, holds: Callable[[], object], *, what: str) -> None:
        """Do the kubelets' work until `holds` does."""

        def held() -> object:
            self.sync()
            return holds()

        wait_until(held, what=what, timeout=PATIENCE, pause=PAUSE)

    def join(self, station: Station) -> None:
        """One more node. The scheduler does not know it: only pods that name it run there."""
        self._stations[station.name] = station

    def leave(self, station: Station) -> None:
        """Its pods end, and no more start there."""
        for pod in [pod for pod in self.pods if pod.station is station]:
            self._end(pod)
        del self._stations[station.name]

    @contextmanager
    def traced_agent(self, recording: Recording) -> Iterator[None]:
        """The one agent that starts within the block runs without its supervisor, and its calls are noted."""
        self._recording = recording
        try:
            yield
        finally:
            self._recording = None

    @contextmanager
    def other_router(self, program: Path) -> Iterator[None]:
        """Router pods that start within the block run this program, whatever their command is, in a privileged
        container: the Go programs write sysctls.
        """
        self._program = program
        try:
            yield
        finally:
            self._program = None

    def kill(self, pod: RunningPod) -> None:
        """The node of a pod dies, as far as the pod is concerned: its process and its namespace, and nobody is told."""
        if pod.container is not None:
            agent = pod.agent
            pod.container.kill()
            pod.container.wait(PATIENCE)
            if agent is not None:
                os.kill(agent, signal.SIGKILL)
        pod.sandbox.destroy()

    def finish(self, pod: RunningPod) -> None:
        """The pod has done its work: its sandbox goes, its object stays."""
        self._take_down(pod)
        self._api.patch(f"{pod.path}/status", {"status": {"phase": _FINISHED}})

    def end_all(self) -> None:
        """End every pod, whatever the API server has of it."""
        for pod in self.pods:
            self._end(pod)

    def _sync_pod(self, document: Document) -> None:
        """Start it if it does not run yet, and report its readiness if that has changed."""
        uid = document["metadata"]["uid"]
        if uid not in self._pods:
            self._start(document)
        if uid not in self._pods:
            return  # its ADD has failed
        pod = self._pods[uid]
        pod.document = document
        if pod.ready != self._is_ready(pod):
            self._report(pod)

    def _start(self, document: Document) -> None:
        metadata = document["metadata"]
        node = document["spec"].get("nodeName") or self._bind(document)
        station = self._stations[node]
        name = PodName(metadata["namespace"], metadata["name"], metadata["uid"])
        sandbox = station.wired.make_sandbox(name, container_id=secrets.token_hex(32))
        # A runtime has the plugin `loopback` do this.
        sandbox.kernel.run("ip", "link", "set", "lo", "up")
        try:
            given = addresses_of(station.runtime.add(sandbox))
        except CniError as error:
            _log.info("%s does not start: %s", name.name, error)
            self.refusals.setdefault(name.uid, []).append(error)
            station.runtime.delete(sandbox)
            sandbox.destroy()
            return
        addresses: dict[int, str] = {ip_address(each).version: each for each in given}
        pod = RunningPod(document=document, station=station, sandbox=sandbox, addresses=addresses)
        self._pods[pod.uid] = pod
        container = document["spec"]["containers"][0]
        if "coil-egress-agent" in container.get("command", []) or (self._program and container["name"] == "egress"):
            pod.container = self._start_container(pod)
        _log.info("%s runs on %s: %s", name.name, station.name, given)
        self._report(pod)

    def _bind(self, document: Document) -> str:
        """To the node with the fewest pods, as a scheduler does it."""
        count = Counter(pod.station.name for pod in self._pods.values())
        node = min(self._schedulable, key=count.__getitem__)
        metadata = document["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
        self._api.create(path, {"metadata": {"name": metadata["name"]}, "target": {"kind": "Node", "name": node}})
        return node

    def kill_agent(self, pod: RunningPod) -> None:
        """Kill a router's agent, and return when the container's first process has run it again and it is ready.

        Meanwhile nobody asks the probe: that is shorter than the three times that a kubelet asks before it believes it.
        """
        killed = pod.agent
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: pod.agent not in (None, killed), what="the agent runs again", timeout=PATIENCE, pause=PAUSE)
        wait_until(lambda: self._is_ready(pod), what="the agent is ready again", timeout=PATIENCE, pause=PAUSE)

    def _start_container(self, pod: RunningPod) -> Process:
        container = pod.document["spec"]["containers"][0]
        arguments = container.get("args", [])
        command = [sys.executable, "-m", "coil_egress_agent.supervisor", *arguments]
        if self._recording is not None:
            command = self._recording.traced([sys.executable, "-m", "coil_egress_agent", *arguments])
        if self._program is not None:
            command = [str(self._program), *arguments]
        script = _CONTAINER if self._program is None else _PRIVILEGED_CONTAINER
        inside = ["nsenter", f"--net={pod.sandbox.netns}", "--", "unshare", "--mount", "--propagation=private"]
        account = self._account_folder(pod)
        return self._workspace.spawn(
            pod.sandbox.pod.name,
            [*inside, "sh", "-c", script, "sh", str(account), *command],
            env={
                **{entry["name"]: self._value(entry, pod) for entry in container["env"]},
                "KUBERNETES_SERVICE_HOST": str(self._description.families.apiserver_address),
                "KUBERNETES_SERVICE_PORT": "443",
            },
        )

    def _value(self, entry: Document, pod: RunningPod) -> str:
        """A container's variable: itself, or a field of the pod."""
        if "value" in entry:
            return str(entry["value"])
        field = entry["valueFrom"]["fieldRef"]["fieldPath"]
        known = {"metadata.namespace": pod.sandbox.pod.namespace, "metadata.name": pod.sandbox.pod.name}
        return known[field] if field in known else {"status.podIPs": ",".join(self._listed(pod))}[field]

    def _account_folder(self, pod: RunningPod) -> Path:
        """A folder with the token of the pod's service account and the API server's authority."""
        folder = self._workspace.make_folder("accounts", pod.uid)
        account = pod.document["spec"]["serviceAccountName"]
        answer = self._api.create(
            f"/api/v1/namespaces/{pod.sandbox.pod.namespace}/serviceaccounts/{account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        )
        (folder / "token").write_text(answer["status"]["token"])
        (folder / "ca.crt").write_bytes(self._description.authority.read_bytes())
        return folder

    def _is_ready(self, pod: RunningPod) -> bool:
        if pod.container is None:
            return True
        if pod.container.poll() is not None or not pod.sandbox.netns:
            return False

        def ask() -> bool:
            connection = http.client.HTTPConnection(self._listed(pod)[0], _HEALTH_PORT, timeout=10)
            try:
                connection.request("GET", "/readyz")
                return connection.getresponse().status == http.client.OK
            except (OSError, http.client.HTTPException):
                return False
            finally:
                connection.close()

        return call_inside(pod.netns, ask)

    def _report(self, pod: RunningPod) -> None:
        pod.ready = self._is_ready(pod)
        _log.info("%s is %sready", pod.sandbox.pod.name, "" if pod.ready else "not ")
        conditions = [
            {"type": kind, "status": str(holds)}
            for kind, holds in (("Initialized", True), ("PodScheduled", True), ("ContainersReady", pod.ready))
        ]
        conditions.append({"type": "Ready", "status": str(pod.ready)})
        first, *_ = addresses = self._listed(pod)
        listed = [{"ip": address} for address in addresses]
        status = {"phase": "Running", "podIP": first, "podIPs": listed, "conditions": conditions}
        self._api.patch(f"{pod.path}/status", {"status": status})

    def _listed(self, pod: RunningPod) -> list[str]:
        """Its addresses as a kubelet lists them: the node's first family comes first, whatever the plugin said."""
        return [pod.addresses[version] for version in self._description.families.value]

    def _end(self, pod: RunningPod) -> None:
        self._take_down(pod)
        self._api.delete(pod.path, grace=0)

    def _take_down(self, pod: RunningPod) -> None:
        if pod.container is not None:
            pod.container.stop(timeout=PATIENCE)
        pod.station.runtime.delete(pod.sandbox)
        pod.sandbox.destroy()
        del self._pods[pod.uid]

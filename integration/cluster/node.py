"""A node: a network namespace with its own containerd, kubelet, kube-proxy and BIRD, on the machine's file system.

Its mount namespace gives it a /run, a /var/log and a /var/lib/kubelet of its own, so that programs which have their
paths built in do not meet their twins of another node, and every mount of theirs goes with them. ``run_dir`` is what
the node sees as /run: a socket ``/run/x.sock`` made on the node is ``run_dir / "x.sock"`` on the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from integration.cluster.bird import Speaker, render_bird
from integration.cluster.cleanup import kill_node, netns_link
from integration.cluster.command_line import Version
from integration.cluster.credentials import NodeCredentials
from integration.cluster.network import Namespaces, NodeNetwork
from integration.cluster.node_config import (
    CNI_BIN_DIR,
    CNI_CONF_DIR,
    CONTAINERD_SOCKET,
    KERNEL_SETTINGS,
    KUBELET_BUILT_IN_ROOT,
    KUBELET_ROOT,
    Identity,
    OomScores,
    Snapshotter,
    render_containerd,
    render_kubelet,
    render_proxy,
)
from integration.cluster.process import Process, marked_environment
from integration.cluster.programs import Program
from integration.cluster.proxy_mode import choose_proxy_mode
from integration.cluster.requirement import (
    CAP_SYS_RESOURCE,
    CNI_PLUGINS,
    can_mount_overlay,
    has_capability,
)
from integration.cluster.workspace import Workspace

START_TIMEOUT = 180.0  # seconds for one component
RUN_TIMEOUT = 60.0  # seconds for one command on a node
_PROXY_CONFIG = "kube-proxy.yaml"
_ON_A_DISK = (Path(KUBELET_ROOT).name, CNI_BIN_DIR.parts[2])
"""Folders below a node's /run that stand for what is on the disk of other nodes."""


class NodeCommandError(Exception):
    """A command on a node failed; the message has what it said."""


@dataclass(frozen=True, slots=True)
class Software:
    """What every node runs, from where."""

    programs: Mapping[Program, Path]
    version: Version  # of the kubelet
    containerd: Version
    images: Path  # an archive for `ctr images import`
    patience: float = 1.0
    """How many times as long as on a machine of its own everything may take."""
    kube_proxy: bool = True
    """Whether it runs on the nodes; without, something else has to serve Services."""


class Node:
    """A node of a running cluster; made by ``Cluster``. The working directory of what runs on it is /."""

    def __init__(
        self, workspace: Workspace, network: NodeNetwork, software: Software, *, name: str, index: int
    ) -> None:
        self.name = name
        self.folder = workspace.make_folder(name)
        self.run_dir = workspace.make_folder(name, "run")
        self.cni_bin_dir = workspace.make_folder(name, "run", *CNI_BIN_DIR.parts[2:])
        self.cni_conf_dir = workspace.make_folder(name, "run", *CNI_CONF_DIR.parts[2:])
        self.containerd_socket = self.run_dir / CONTAINERD_SOCKET
        self.ipv4: IPv4Address
        self.ipv6: IPv6Address
        self.ipv4, self.ipv6 = network.node_addresses(index)
        self._workspace = workspace
        self._network = network
        self._software = software
        self._patience = software.patience
        self._namespaces = Namespaces.hold(workspace, name)

    @property
    def netns(self) -> Path:
        """Its network namespace; by name it is ``coil-<cluster>-<node>`` for ``ip -n`` and ``ip netns exec``."""
        return self._namespaces.net

    @property
    def speaker(self) -> Speaker:
        """The node as the others' routing daemons see it."""
        return Speaker(name=self.name, ipv4=self.ipv4, ipv6=self.ipv6)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = RUN_TIMEOUT,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command on the node to its end and return its standard output; ``env`` adds to the environment.

        Raises NodeCommandError when it fails or does not end within ``timeout`` seconds, times the software's patience
        (it is killed then).
        """
        what = f"{self.name}: {' '.join(argv)}"
        try:
            done = subprocess.run(
                [*self._namespaces.entrance, *argv],
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=self._patience * timeout,
                env=marked_environment(self._workspace.id, env),
            )
        except subprocess.TimeoutExpired as error:
            raise NodeCommandError(f"{what}: not done after {self._patience * timeout:.0f} s") from error
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip())[-2000:]
            raise NodeCommandError(f"{what}: exit code {done.returncode}: {said}")
        return done.stdout

    def spawn(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> Process:
        """Start a long-running program on the node; its pid is the program's own, so it can be signalled.

        Logs to ``logs/<node>.<name>.log`` of the cluster unless ``log`` is given. Ends with the cluster at the latest.
        """
        return self._workspace.spawn(f"{self.name}.{name}", [*self._namespaces.entrance, *argv], env=env, log=log)

    def start(self, *, others: Sequence[Speaker]) -> None:
        """Bring up what needs no control plane: network, routing daemon and container runtime, with the images.

        Raises ComponentError, NetworkError or NodeCommandError.
        """
        self._make_private_paths()
        self._network.attach(self._namespaces, port=self.name, addresses=(self.ipv4, self.ipv6))
        link = netns_link(self._workspace.id, self.name)
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(self.netns)
        self._start_bird(others)
        self._start_containerd()

    def join(self, credentials: NodeCredentials) -> None:
        """Make it a node of the cluster: it registers itself and is Ready once ``cni_conf_dir`` has a configuration."""
        self._start_kubelet(credentials)
        if self._software.kube_proxy:
            self._start_proxy(credentials)

    def restart_proxy(self) -> None:
        """kill -9 of kube-proxy, and start it again; not waited for."""
        name = f"{self.name}.{Program.PROXY}"
        for process in self._workspace.processes:
            if process.name == name:
                process.kill()
        self._workspace.forget(name)
        self._spawn_proxy()

    def power_off(self, *, keep: Collection[str] = ()) -> None:
        """All that runs on it ends at once, and its links, mounts and namespaces go. `start` and `join` switch it on.

        Of what is below its /run there stays what stands for something on a disk: what the kubelet keeps, the plugins
        and their configuration, and the entries that `keep` names. The machine's clock and its boot id go on.
        """
        kill_node(self._workspace.id, self.name, network=self.netns.stat().st_ino)
        programs = {process.name for process in self._workspace.processes if process.name.startswith(f"{self.name}.")}
        self._workspace.forget(self._namespaces.holder.name, *programs)
        netns_link(self._workspace.id, self.name).unlink(missing_ok=True)
        for entry in self.run_dir.iterdir():
            if entry.name in (*_ON_A_DISK, *keep):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        self._namespaces = Namespaces.hold(self._workspace, self.name)

    def import_images(self, archive: Path, *, timeout: float = START_TIMEOUT) -> None:
        """Have the images of an OCI archive in containerd. Idempotent. Raises NodeCommandError."""
        command = [*self._ctr, "images", "import", "--snapshotter", self._snapshotter, str(archive)]
        self.run(command, timeout=timeout)

    def tag_image(self, image: str, name: str) -> None:
        """Have an image that is there under another name as well. Idempotent. Raises NodeCommandError."""
        self.run([*self._ctr, "images", "tag", "--force", image, name])

    def container_pid(self, container: str) -> str:
        """The process id of a running container's program. Raises NodeCommandError, or LookupError if it runs not."""
        for line in self.run([*self._ctr, "tasks", "list"]).splitlines():
            if line.startswith(container):
                return line.split()[1]
        raise LookupError(f"{self.name}: no container {container} runs")

    def _make_private_paths(self) -> None:
        # The machine's are still listed below the node's own, and containerd takes the first that it finds: what it is
        # to share with containers has to be shared there, too, where the machine has mounted anything.
        with suppress(NodeCommandError):
            while True:  # one may lie over the other; after the last there is nothing to unmount
                self.run(["umount", "--recursive", "--lazy", "/run/netns"])
        with suppress(NodeCommandError):
            self.run(["mount", "--make-shared", "/run"])
        # On the machine there has to be something to mount over.
        KUBELET_BUILT_IN_ROOT.mkdir(parents=True, exist_ok=True)
        for private, public in (
            (self.run_dir, "/run"),
            (self._workspace.make_folder(self.name, "log"), "/var/log"),
            (self._workspace.make_folder(self.name, "kubelet"), str(KUBELET_BUILT_IN_ROOT)),
        ):
            self.run(["mount", "--bind", str(private), public])
        # Containers may ask to see what is mounted there later, as coild does for the namespaces of pods.
        self.run(["mount", "--make-shared", "/run"])
        settings = self._workspace.make_folder(self.name, "kernel")
        for setting, value in KERNEL_SETTINGS.items():
            public_setting = Path("/proc/sys") / setting
            if public_setting.exists():
                private_setting = settings / setting.replace("/", ".")
                private_setting.write_text(f"{value}\n")
                self.run(["mount", "--bind", str(private_setting), str(public_setting)])
        # A pod with users of its own may only mount /proc where one that hides nothing is mounted already.
        self.run(["mount", "-t", "proc", "proc", str(self._workspace.make_folder(self.name, "proc"))])

    def _start_bird(self, others: Sequence[Speaker]) -> None:
        config = self._write("bird.conf", render_bird(self.speaker, others, self._network.families.value))
        control = self.run_dir / "bird.ctl"
        process = self.spawn("bird", ["bird", "-f", "-c", str(config), "-s", "/run/bird.ctl"])
        process.wait_ready(control.is_socket, timeout=self._patience * START_TIMEOUT)

    def _start_containerd(self) -> None:
        # The runtime itself sets up each pod's loopback device with this one.
        shutil.copy2(CNI_PLUGINS / "loopback", self.cni_bin_dir)
        config = self._write(
            "containerd.toml",
            render_containerd(
                self._identity,
                version=self._software.containerd,
                runc=self._software.programs[Program.RUNC],
                snapshotter=self._snapshotter,
                oom_scores=OomScores.FREE if has_capability(CAP_SYS_RESOURCE) else OomScores.RESTRICTED,
            ),
        )
        program = self._software.programs[Program.CONTAINERD]
        # It looks for its shim on the path.
        shim = self._software.programs[Program.SHIM].parent
        process = self.spawn(
            "containerd", [str(program), "--config", str(config)], env={"PATH": f"{shim}:{os.environ['PATH']}"}
        )
        process.wait_ready(self._containerd_answers, timeout=self._patience * START_TIMEOUT)
        self.import_images(self._software.images)

    def _start_kubelet(self, credentials: NodeCredentials) -> None:
        software = self._software
        config = self._write(
            "kubelet.yaml",
            render_kubelet(
                self._identity,
                client_authority=credentials.authority,
                serving=credentials.serving,
                version=software.version,
            ),
        )
        self._write("resolv.conf", "")
        self.spawn(
            "kubelet",
            [
                str(software.programs[Program.KUBELET]),
                f"--config={config}",
                f"--kubeconfig={credentials.kubelet}",
                f"--hostname-override={self.name}",
                f"--node-ip={','.join(map(str, self._network.families.pick(self.ipv4, self.ipv6)))}",
                f"--root-dir={KUBELET_ROOT}",
                f"--volume-plugin-dir={KUBELET_ROOT}/volume-plugins",
                f"--container-runtime-endpoint=unix:///run/{CONTAINERD_SOCKET}",
                *software.version.remote_runtime_flags,
            ],
            # It would look for a cloud's metadata service first, for ten seconds.
            env={"AWS_EC2_METADATA_DISABLED": "true"},
        )

    def _start_proxy(self, credentials: NodeCredentials) -> None:
        software = self._software
        self._write(
            _PROXY_CONFIG,
            render_proxy(
                self.name,
                kubeconfig=credentials.proxy,
                mode=choose_proxy_mode(software.version),
                feature_gates=software.version.feature_gates,
                bind_address=self._network.families.unspecified,
            ),
        )
        self._spawn_proxy()

    def _spawn_proxy(self) -> None:
        program = self._software.programs[Program.PROXY]
        self.spawn(Program.PROXY, [str(program), f"--config={self.folder / _PROXY_CONFIG}"])

    @property
    def _identity(self) -> Identity:
        return Identity(
            name=self.name,
            ipv4=self.ipv4,
            ipv6=self.ipv6,
            folder=self.folder,
            families=self._network.families,
        )

    @cached_property
    def _snapshotter(self) -> Snapshotter:
        return Snapshotter.OVERLAY if can_mount_overlay(self.folder) else Snapshotter.NATIVE

    @property
    def _ctr(self) -> list[str]:
        return [str(self._software.programs[Program.CTR]), f"--address=/run/{CONTAINERD_SOCKET}", "--namespace=k8s.io"]

    def _containerd_answers(self) -> bool:
        try:
            self.run([*self._ctr, "version"], timeout=5)
        except NodeCommandError:
            return False
        return True

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

"""A real Kubernetes control plane: etcd and kube-apiserver, and, where nodes follow, the controllers and the scheduler.

Second station of a cluster's start, after ``programs``; usable alone. TLS everywhere, RBAC and the node authorizer on:
the only administrator is the holder of ``admin_kubeconfig``, and programs under test run as service accounts.
"""

from __future__ import annotations

import enum
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from integration.cluster.address import free_port, random_loopback
from integration.cluster.audit_log import audit_flags
from integration.cluster.command_line import (
    Version,
    apiserver_command,
    controller_manager_command,
    scheduler_command,
)
from integration.cluster.credentials import Credentials
from integration.cluster.etcd import Etcd
from integration.cluster.family import Address, ClusterFamilies
from integration.cluster.https import Endpoint
from integration.cluster.kubeconfig import write_token_kubeconfig
from integration.cluster.network import Namespaces, run_command
from integration.cluster.pki import CertificateAuthority
from integration.cluster.process import Process, marked_environment
from integration.cluster.programs import CONTROL_PLANE, CONTROLLERS, Program, locate
from integration.cluster.workspace import Workspace

START_TIMEOUT = 180.0  # seconds for one component
GRACE = 2.0  # seconds that the API server has to end; by itself it would wait a minute for its watches
KUBECTL_TIMEOUT = 240.0  # seconds for one run of kubectl
READ_TIMEOUT = 120.0  # seconds in which an object or a list must have begun to arrive
TOO_MANY_REQUESTS = 429
RETRY_PAUSE = 0.2
TOKEN_SECONDS = 24 * 60 * 60


class Controllers(enum.Enum):
    """Whether something acts on what the API server stores."""

    ABSENT = enum.auto()
    RUNNING = enum.auto()


class KubectlError(Exception):
    """kubectl failed; the message has its arguments and what it said."""


class ControlPlane:
    """A running control plane. Make one with ``start``; a context manager that stops it."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        programs: Mapping[Program, Path],
        address: Address,
        namespaces: Namespaces | None = None,
        apiserver_flags: Sequence[str] = (),
        families: ClusterFamilies = ClusterFamilies.IPV4_FIRST,
    ) -> None:
        self.workspace = workspace
        self.address = address
        self.families = families
        self._namespaces = namespaces
        self.port = self._free_port(6443)
        self.version = Version.of(programs[Program.APISERVER])
        self.credentials = Credentials.issue(
            workspace.folder / "pki", address=address, port=self.port, service_address=families.apiserver_address
        )
        self._programs = programs
        self._apiserver_flags = (*audit_flags(workspace.folder), *apiserver_flags)
        self._undo = ExitStack()
        self._api = self._endpoint(self.port)
        self.etcd = Etcd(
            workspace,
            program=programs[Program.ETCD],
            authority=CertificateAuthority(workspace.make_folder("pki", "etcd"), name="coil-etcd"),
            address=address,
            ports=(self._free_port(2379), self._free_port(2479)),
            entrance=self._entrance,
        )
        self._apiserver: Process | None = None

    @classmethod
    def start(
        cls,
        *,
        controllers: Controllers = Controllers.ABSENT,
        workspace: Workspace | None = None,
        address: Address | None = None,
        namespaces: Namespaces | None = None,
        apiserver_flags: Sequence[str] = (),
        families: ClusterFamilies = ClusterFamilies.IPV4_FIRST,
    ) -> ControlPlane:
        """Start one and return when it is ready, some seconds once the programs are built.

        Without ``workspace`` it has its own, and ``stop`` leaves nothing behind. Without ``address`` it listens on a
        loopback address of its own. With ``namespaces`` its programs run there, where ``address`` must be theirs alone.
        ``apiserver_flags`` come after the API server's own. Services are of ``families``, of which ``address`` must be
        one of the first. Raises BuildError or ComponentError; then nothing is left either.
        """
        wanted = (*CONTROL_PLANE, *(CONTROLLERS if controllers is Controllers.RUNNING else ()))
        programs = locate(wanted)
        with ExitStack() as undo:
            place = workspace or undo.enter_context(Workspace.create())
            plane = cls(
                place,
                programs=programs,
                address=address or random_loopback(),
                namespaces=namespaces,
                apiserver_flags=apiserver_flags,
                families=families,
            )
            plane.etcd.wait_ready()
            plane.start_apiserver()
            if controllers is Controllers.RUNNING:
                plane._start_controllers()
            plane._undo = undo.pop_all()
        return plane

    @property
    def admin_kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.credentials.admin_kubeconfig

    def start_apiserver(self) -> None:
        """Start the API server, at the address it always had, and wait until it is ready. Idempotent."""
        if self._apiserver is None or self._apiserver.poll() is not None:
            command = apiserver_command(
                self._programs[Program.APISERVER],
                self.version,
                self.credentials,
                etcd=self.etcd,
                address=self.address,
                port=self.port,
                families=self.families,
            )
            self._apiserver = self.workspace.spawn(
                Program.APISERVER, [*self._entrance, *command, *self._apiserver_flags]
            )
        self._apiserver.wait_ready(partial(self._api.is_ready, "/readyz"), timeout=START_TIMEOUT)

    def stop_apiserver(self) -> None:
        """End the API server; connections to it break, what it stored stays. Idempotent."""
        if self._apiserver is not None:
            self._apiserver.stop(timeout=GRACE)

    def kill_apiserver(self) -> None:
        """kill -9: nobody is told, and nothing is finished. Idempotent."""
        if self._apiserver is not None:
            self._apiserver.kill()
            self._apiserver.wait(GRACE)

    def restart_apiserver(self) -> None:
        """End the API server and start it again; returns when it is ready."""
        self.stop_apiserver()
        self.start_apiserver()

    @contextmanager
    def silent_apiserver(self) -> Iterator[None]:
        """For the block, the API server is stopped as a process: connections are accepted, and nothing is answered."""
        assert self._apiserver is not None, "the API server runs"
        self._apiserver.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._apiserver.send_signal(signal.SIGCONT)

    def compact_etcd(self) -> int:
        """Forget every old revision, so that watches and continued lists from before get 410; returns the current one.

        The API server's watch cache still knows what it has seen; restart it to make it forget as well.
        """
        return self.etcd.compact()

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """One request as administrator, for who asks often: status and body.

        Raises OSError or http.client.HTTPException when there is no answer.
        """
        return self._api.request(method, path, body)

    def read(self, path: str) -> dict[str, Any]:
        """An object or a list, as administrator, by its path: for who waits for something and asks often.

        A server that has just started, or has just been given the kind, asks to come again later; that is done. Raises
        LookupError with the answer when it is another than 200, or as `request` when there is none.
        """
        deadline = time.monotonic() + READ_TIMEOUT
        while True:
            status, body = self._api.request("GET", path, timeout=READ_TIMEOUT)
            if status != TOO_MANY_REQUESTS or time.monotonic() > deadline:
                break
            time.sleep(RETRY_PAUSE)
        if status != 200:
            raise LookupError(f"GET {path}: {status}: {body.decode(errors='replace')}")
        document: dict[str, Any] = json.loads(body)
        return document

    def run(self, *argv: str) -> None:
        """Run one short command where the API server runs. Raises NetworkError when it fails."""
        run_command([*self._entrance, *argv])

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        kubeconfig: Path | None = None,
        timeout: float = KUBECTL_TIMEOUT,
    ) -> str:
        """Run kubectl, as administrator unless ``kubeconfig`` is given, and return its standard output.

        Raises KubectlError when it fails or does not end within ``timeout`` seconds.
        """
        what = f"kubectl {' '.join(arguments)}"
        try:
            done = subprocess.run(
                [find_kubectl(), f"--kubeconfig={kubeconfig or self.admin_kubeconfig}", *arguments],
                input=stdin if stdin is not None else "",
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout,
                # kubectl remembers what is served at an address, which another cluster may have later.
                env=marked_environment(
                    self.workspace.id, {"KUBECACHEDIR": str(self.workspace.folder / "kubectl-cache")}
                ),
            )
        except subprocess.TimeoutExpired as error:
            raise KubectlError(f"{what}: not done after {timeout:.0f} s") from error
        if done.returncode:
            raise KubectlError(f"{what}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def kubeconfig_for(self, service_account: str, namespace: str = "kube-system", *, pod: str = "") -> Path:
        """A kubeconfig, mode 0600, of an existing service account, with a fresh token that outlasts any test run.

        With `pod`, the token is bound to that pod of the namespace, as the one that a kubelet puts into it. Raises
        LookupError when the account or the pod does not exist. Calling it again renews the token in the same file.
        """
        token = self._request_token(service_account, namespace, pod)
        folder = self.workspace.make_folder("service-accounts")
        name = f"{namespace}.{service_account}.{pod}" if pod else f"{namespace}.{service_account}"
        token_file = folder / f"{name}.token"
        token_file.touch(mode=0o600)
        token_file.write_text(token)
        return write_token_kubeconfig(folder / f"{name}.kubeconfig", self.credentials.server, token_file)

    def endpoint_for(self, service_account: str, namespace: str = "kube-system", *, pod: str = "") -> Endpoint:
        """The API server as that account calls it, with a token as in `kubeconfig_for`. Raises LookupError likewise."""
        return Endpoint(
            address=str(self.address),
            port=self.port,
            authority=self.credentials.authority.certificate,
            token=self._request_token(service_account, namespace, pod),
        )

    def _request_token(self, service_account: str, namespace: str, pod: str) -> str:
        wanted: dict[str, Any] = {"expirationSeconds": TOKEN_SECONDS}
        if pod:
            wanted["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod}
        status, body = self.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token",
            json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": wanted}).encode(),
        )
        if status != 201:
            raise LookupError(f"no token for {namespace}/{service_account}: {status}: {body.decode(errors='replace')}")
        token: str = json.loads(body)["status"]["token"]
        return token

    def stop(self) -> None:
        """End it and remove every trace of it, when it has a workspace of its own. Idempotent."""
        self._undo.close()

    def __enter__(self) -> ControlPlane:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_controllers(self) -> None:
        started = []
        for program, command, preferred in (
            (Program.CONTROLLER_MANAGER, partial(controller_manager_command, families=self.families), 10257),
            (Program.SCHEDULER, scheduler_command, 10259),
        ):
            port = self._free_port(preferred)
            argv = command(self._programs[program], self.version, self.credentials, address=self.address, port=port)
            started.append((self.workspace.spawn(program, [*self._entrance, *argv]), self._endpoint(port)))
        for process, endpoint in started:
            process.wait_ready(partial(endpoint.is_ready, "/healthz"), timeout=START_TIMEOUT)

    @property
    def _entrance(self) -> Sequence[str]:
        return () if self._namespaces is None else self._namespaces.entrance

    def _free_port(self, preferred: int) -> int:
        """In namespaces of its own every port is."""
        return free_port(self.address, preferred) if self._namespaces is None else preferred

    def _endpoint(self, port: int) -> Endpoint:
        return Endpoint(
            address=str(self.address),
            port=port,
            authority=self.credentials.authority.certificate,
            identity=self.credentials.admin,
        )


def find_kubectl() -> str:
    """The kubectl beside the running interpreter, where the wheel puts it, else the one on PATH."""
    beside = Path(sys.executable).with_name("kubectl")
    found = str(beside) if beside.is_file() else shutil.which("kubectl")
    if found is None:
        raise KubectlError("kubectl is missing; install the development dependencies, which have it")
    return found

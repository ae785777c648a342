"""The controllers as pods would run them: the image's user, read-only root, no writable folder, an account's token."""

import shutil
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.deployment import (
    apply_chart,
    controller_probe,
    egress_controller_command,
    ipam_controller_command,
    ready_probe,
    remove_webhooks,
)
from integration.image.build import IMAGE
from integration.image.rootfs import Container, Rootfs
from integration.service import Service

pytestmark = pytest.mark.apiserver

LOCALHOST = IPv4Address("127.0.0.1")
ACCOUNT_FOLDER = "/run/secrets/kubernetes.io/serviceaccount"
PORT = 9386


@pytest.fixture
def plane(apiserver: ControlPlane) -> Iterator[ControlPlane]:
    apply_chart(apiserver)
    yield apiserver
    for controller in ("coil-ipam-controller", "coil-egress-controller"):
        remove_webhooks(apiserver, of=controller)


def start(
    image: Rootfs, plane: ControlPlane, *, command: list[str], account: Path, ready: Callable[[], bool]
) -> Service:
    """The program of `command`, which names the checkout's, from the image instead; returns when it is ready."""
    _, _, module, *flags = command
    program = module.replace("_", "-")
    copy_account(plane, program, account)
    container = Container(
        environment={"KUBERNETES_SERVICE_HOST": str(plane.address), "KUBERNETES_SERVICE_PORT": str(plane.port)},
        mounts={account: ACCOUNT_FOLDER},
    )
    argv = [program, *(flag for flag in flags if not flag.startswith("--kubeconfig="))]
    service = Service(
        lambda: plane.workspace.spawn(f"image-{program}", image.command(argv, container=container)), ready=ready
    )
    service.wait_ready()
    return service


def copy_account(plane: ControlPlane, name: str, folder: Path) -> None:
    """What a pod finds of its service account, readable for the image's user."""
    token = plane.kubeconfig_for(name).with_suffix(".token")
    shutil.copyfile(token, folder / "token")
    shutil.copyfile(plane.credentials.server.authority, folder / "ca.crt")
    (folder / "namespace").write_text("kube-system")
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o444)


def users_of(service: Service) -> list[str]:
    """Real user ids from the process that was started down to the program itself, which has no children."""
    users, pids = [], [service.process.pid]
    while pids:
        [status] = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
        users += [line.split()[1] for line in status.splitlines() if line.startswith("Uid:")]
        pids = [int(pid) for pid in Path(f"/proc/{pids[0]}/task/{pids[0]}/children").read_text().split()]
    return users


def test_the_ipam_controller_serves_webhooks(image: Rootfs, plane: ControlPlane, tmp_path: Path) -> None:
    metrics = free_port(LOCALHOST, PORT)
    health = free_port(LOCALHOST, metrics + 1)
    command = ipam_controller_command(plane, ports=(metrics, health), flags=["--inspect-addr=127.0.0.1:0"])
    ready = controller_probe(plane, health=health)
    service = start(image, plane, command=command, account=tmp_path, ready=ready)
    assert users_of(service)[-1] == "65532"
    service.kill()


def test_the_egress_controller_becomes_ready(image: Rootfs, plane: ControlPlane, tmp_path: Path) -> None:
    metrics = free_port(LOCALHOST, PORT)
    health = free_port(LOCALHOST, metrics + 1)
    command = egress_controller_command(plane, ports=(metrics, health), image=IMAGE)
    service = start(image, plane, command=command, account=tmp_path, ready=ready_probe(health))
    assert users_of(service)[-1] == "65532"
    service.kill()

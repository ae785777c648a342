"""What programs ask of a real API server is kept when its cluster goes, even if its owner is killed."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coil.crd.builtin import NAMESPACES, NODES, SERVICES
from coil.crd.resource import Resource
from coil.kube.client import KubeClient
from coil.kube.errors import ForbiddenError
from integration.cluster.audit_log import CALLS_VARIABLE, Call, load_calls
from integration.patience import TIMEOUT, wait_until

pytestmark = pytest.mark.apiserver

REPOSITORY = Path(__file__).resolve().parents[2]
OWNER = """
import time
from integration.cluster.control_plane import ControlPlane

plane = ControlPlane.start()
account = "--serviceaccount=kube-system:reader"
for words in (
    ["serviceaccount", "reader"],
    ["clusterrole", "reader", "--verb=list", "--resource=namespaces"],
    ["clusterrolebinding", "reads-names", "--clusterrole=reader", account],
    ["role", "reader", "--verb=list", "--resource=services"],
    ["rolebinding", "reads-services", "--role=reader", account],
):
    plane.kubectl("--namespace=kube-system", "create", *words)
print(plane.kubeconfig_for("reader"), flush=True)
time.sleep(600)
"""


async def may_list(client: KubeClient, resource: Resource[Any], *, namespace: str) -> bool:
    try:
        await client.list(resource, namespace=namespace)
    except ForbiddenError:
        return False
    return True


async def ask(kubeconfig: Path) -> None:
    """Two calls that are allowed, one that is refused; the API server may take its time to learn of the roles."""
    async with asyncio.timeout(TIMEOUT), KubeClient.connect(kubeconfig) as client:
        for resource, namespace in ((NAMESPACES, ""), (SERVICES, "kube-system")):
            while not await may_list(client, resource, namespace=namespace):
                pass
        with pytest.raises(ForbiddenError):
            await client.get(NODES, "n1")


@pytest.mark.slow
async def test_calls_outlive_the_cluster_and_its_owner(tmp_path: Path) -> None:
    environment = {**os.environ, CALLS_VARIABLE: str(tmp_path)}
    argv = ["setpriv", "--pdeathsig=KILL", sys.executable, "-c", OWNER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=environment) as owner:
        assert owner.stdout is not None
        kubeconfig = Path(owner.stdout.readline().strip())
        await ask(kubeconfig)
        assert load_calls(tmp_path) == set()
        owner.kill()
    wait_until(lambda: not kubeconfig.exists() and load_calls(tmp_path), what="the guardian has kept the calls")
    calls = load_calls(tmp_path)
    # Others may have been refused before the API server had heard of the roles.
    assert {call for call in calls if call.role} == {
        Call(account="reader", verb="list", group="", resource="namespaces", role="ClusterRole reader"),
        Call(account="reader", verb="list", group="", resource="services", role="Role reader in kube-system"),
    }
    assert Call(account="reader", verb="get", group="", resource="nodes", name="n1") in calls

"""The control plane keeps its promises: TLS and RBAC, restart, compaction, no trace left, errors with their reason."""

from __future__ import annotations

import json
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from integration.cluster.build_steps import BuildError
from integration.cluster.control_plane import ControlPlane, KubectlError
from integration.cluster.https import Endpoint
from integration.cluster.process import ComponentError
from integration.cluster.programs import Program, locate
from integration.cluster.trace import Footprint
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def account(apiserver: ControlPlane) -> Iterator[str]:
    name = "control-plane-test"
    apiserver.kubectl("create", "serviceaccount", name, "--namespace=kube-system")
    yield name
    apiserver.kubectl("delete", "serviceaccount", name, "--namespace=kube-system")
    apiserver.kubectl("delete", "clusterrolebinding,clusterrole", name, "--ignore-not-found")


def test_a_service_account_may_do_what_rbac_says_and_nothing_else(apiserver: ControlPlane, account: str) -> None:
    kubeconfig = apiserver.kubeconfig_for(account)

    with pytest.raises(KubectlError, match=r"cannot list resource .namespaces."):
        apiserver.kubectl("get", "namespaces", kubeconfig=kubeconfig)
    apiserver.kubectl("create", "clusterrole", account, "--verb=get,list", "--resource=namespaces")
    apiserver.kubectl(
        *("create", "clusterrolebinding", account, f"--clusterrole={account}"),
        f"--serviceaccount=kube-system:{account}",
    )
    wait_until(lambda: _can_list_namespaces(apiserver, kubeconfig), what="the binding takes effect")
    with pytest.raises(KubectlError, match=r"cannot create resource .namespaces."):
        apiserver.kubectl("create", "namespace", "not-allowed", kubeconfig=kubeconfig)


def _can_list_namespaces(plane: ControlPlane, kubeconfig: Path) -> bool:
    try:
        return "kube-system" in plane.kubectl("get", "namespaces", kubeconfig=kubeconfig)
    except KubectlError:
        return False


def test_kubeconfigs_are_private_and_hold_no_token(apiserver: ControlPlane, account: str) -> None:
    path = apiserver.kubeconfig_for(account)
    user = yaml.safe_load(path.read_text())["users"][0]["user"]

    assert list(user) == ["tokenFile"]
    for file in (path, Path(user["tokenFile"]), apiserver.admin_kubeconfig, apiserver.credentials.admin.key):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_kubeconfig_for_an_absent_account_is_refused(apiserver: ControlPlane) -> None:
    with pytest.raises(LookupError, match="not found"):
        apiserver.kubeconfig_for("nobody-made-this")


def test_etcd_refuses_clients_that_its_authority_does_not_know(apiserver: ControlPlane) -> None:
    stranger = Endpoint(
        address=str(apiserver.address),
        port=apiserver.etcd.port,
        authority=apiserver.etcd.authority,
        identity=apiserver.credentials.admin,
    )
    with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca|bad.certificate"):
        stranger.request("GET", "/health")


def test_a_restarted_apiserver_is_where_it_was_with_what_it_had(apiserver: ControlPlane) -> None:
    apiserver.kubectl("create", "namespace", "survivor")
    apiserver.stop_apiserver()
    with pytest.raises(KubectlError, match="refused"):
        apiserver.kubectl("get", "namespace", "survivor", "--request-timeout=60s")
    apiserver.start_apiserver()
    assert "survivor" in apiserver.kubectl("get", "namespace", "survivor")
    apiserver.kubectl("delete", "namespace", "survivor", "--wait=false")


@pytest.mark.slow
def test_compaction_ends_old_lists_and_watches(apiserver: ControlPlane) -> None:
    page = json.loads(apiserver.kubectl("get", "--raw", "/api/v1/namespaces?limit=1"))
    token, revision = page["metadata"]["continue"], page["metadata"]["resourceVersion"]
    # A revision can be compacted once a newer one exists.
    apiserver.kubectl("create", "configmap", "newer")
    apiserver.kubectl("delete", "configmap", "newer")

    assert apiserver.compact_etcd() > int(revision)

    # The watch cache would still know, of lists from 1.34 on and of watches.
    apiserver.restart_apiserver()
    with pytest.raises(KubectlError, match="continue parameter is too old"):
        apiserver.kubectl("get", "--raw", f"/api/v1/namespaces?limit=1&continue={token}")
    events = apiserver.kubectl(
        "get", "--raw", f"/api/v1/namespaces?watch=true&resourceVersion={revision}&timeoutSeconds=5"
    )
    assert json.loads(events.splitlines()[0])["object"]["code"] == 410


@pytest.mark.slow
def test_two_control_planes_live_side_by_side_and_one_leaves_without_trace(apiserver: ControlPlane) -> None:
    with ControlPlane.start() as other:
        folder = other.workspace.folder
        other.kubectl("create", "namespace", "only-here")
        assert "only-here" not in apiserver.kubectl("get", "namespaces")
        footprint = Footprint.take(other.workspace.id)
        assert len(footprint.processes) == 3, "etcd, kube-apiserver, the guardian"
    assert footprint.remains() == []
    assert not folder.exists()
    assert "default" in apiserver.kubectl("get", "namespaces")


@pytest.mark.slow
def test_an_owner_killed_by_sigkill_leaves_no_trace() -> None:
    program = (
        "import time; from integration.cluster.control_plane import ControlPlane; plane = ControlPlane.start(); "
        "print(plane.workspace.folder, flush=True); time.sleep(600)"
    )
    argv = ["setpriv", "--pdeathsig=KILL", sys.executable, "-c", program]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        footprint = Footprint.take(folder.name)
        owner.kill()
    wait_until(lambda: not folder.exists() and footprint.remains() == [], what="the guardian cleans up")


def _fake(folder: Path, program: Program, script: str) -> None:
    path = folder / program
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_component_that_dies_is_reported_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path, Program.ETCD, "echo disk on fire >&2; exit 3")
    _fake(tmp_path, Program.APISERVER, "echo Kubernetes v1.31.0")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))

    with pytest.raises(ComponentError, match=r"(?s)etcd ended with code 3 .*disk on fire"):
        ControlPlane.start()


def test_the_users_programs_are_taken_and_must_be_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    _fake(tmp_path, Program.ETCD, "exit 0")
    _fake(tmp_path, Program.APISERVER, "exit 0")

    assert locate([Program.ETCD, Program.APISERVER]) == {
        Program.ETCD: tmp_path / "etcd",
        Program.APISERVER: tmp_path / "kube-apiserver",
    }
    (tmp_path / "kube-apiserver").unlink()
    with pytest.raises(BuildError, match="has no kube-apiserver"):
        locate([Program.ETCD, Program.APISERVER])

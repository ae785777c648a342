"""Webhooks that insist on a client certificate, and a real kube-apiserver that is configured to have one."""

import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPSConnection

import pytest

from integration.apiserver.ipam_world import STOP_TIMEOUT, Replica
from integration.cluster.control_plane import ControlPlane
from integration.cluster.network import Network
from integration.cluster.pki import CertificateAuthority, KeyPair
from integration.cluster.workspace import Workspace
from integration.deployment import POOLS_PATH, apply_chart

pytestmark = pytest.mark.apiserver

CONFIGURATION = "apiserver.config.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Guarded:
    """`trusted` and `stranger` are client certificates: of the authority that the webhooks trust, and of another."""

    plane: ControlPlane
    replica: Replica
    trusted: KeyPair
    stranger: KeyPair

    def call(self, client: KeyPair | None) -> int:
        """The status of a request to the webhooks. Raises OSError where there is no answer."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        connection = HTTPSConnection(str(self.plane.address), self.replica.webhook_port, timeout=60, context=context)
        try:
            connection.request(
                "POST", "/validate-coil-cybozu-com-v2-addresspool", b"{}", {"Content-Type": "application/json"}
            )
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Workspace.create() as workspace:
        authority = CertificateAuthority(workspace.make_folder("client-ca"), name="webhook-clients")
        trusted = authority.issue("kube-apiserver")
        stranger = CertificateAuthority(workspace.make_folder("other-ca"), name="somebody").issue("kube-apiserver")
        kubeconfig = workspace.folder / "webhook-client.json"
        user = {"client-certificate": str(trusted.certificate), "client-key": str(trusted.key)}
        kubeconfig.write_text(
            json.dumps({"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": user}]})
        )
        webhook = {
            "apiVersion": CONFIGURATION,
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": str(kubeconfig),
        }
        plugins = ("ValidatingAdmissionWebhook", "MutatingAdmissionWebhook")
        admission = workspace.folder / "admission.json"
        admission.write_text(
            json.dumps(
                {
                    "apiVersion": CONFIGURATION,
                    "kind": "AdmissionConfiguration",
                    "plugins": [{"name": name, "configuration": webhook} for name in plugins],
                }
            )
        )
        plane = ControlPlane.start(
            workspace=workspace,
            address=Network.create(workspace).host4,
            apiserver_flags=[f"--admission-control-config-file={admission}"],
        )
        apply_chart(plane)
        replica = Replica(plane, "guarded", f"--webhook-client-ca={authority.certificate}")
        try:
            replica.service.wait_ready()
            yield Guarded(plane, replica, trusted, stranger)
        finally:
            replica.service.process.stop(timeout=STOP_TIMEOUT)


def test_the_api_server_is_answered(guarded: Guarded) -> None:
    pool = {
        "apiVersion": "coil.cybozu.com/v2",
        "kind": "AddressPool",
        "metadata": {"name": "guarded"},
        "spec": {"subnets": [{"ipv4": "10.250.0.999/24"}]},
    }
    status, body = guarded.plane.request("POST", f"{POOLS_PATH}?dryRun=All", json.dumps(pool).encode())
    assert (status, b"admission webhook" in body) == (422, True)


def test_nobody_else_is(guarded: Guarded) -> None:
    assert guarded.call(guarded.trusted) == 400  # the body is no review
    for client in (None, guarded.stranger):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            guarded.call(client)

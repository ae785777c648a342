"""The typed client against the real kube-apiserver: what the scripted server of the unit tests only claims."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from coil.crd.builtin import NAMESPACES
from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource
from coil.kube.access import Access
from coil.kube.client import KubeClient
from coil.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NamespaceTerminatingError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from integration.apiserver.config_map import CONFIG_MAPS, ConfigMap
from integration.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.apiserver


class Nothing(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta


@pytest.fixture
async def client(apiserver: ControlPlane) -> AsyncIterator[KubeClient]:
    async with KubeClient.connect(apiserver.admin_kubeconfig) as connected:
        yield connected


@pytest.fixture
async def namespace(client: KubeClient) -> AsyncIterator[str]:
    name = f"client-{secrets.token_hex(4)}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    await client.delete(NAMESPACES, name)


async def test_the_life_of_an_object(client: KubeClient, namespace: str) -> None:
    created = await client.create(
        CONFIG_MAPS, ConfigMap(metadata=ObjectMeta(name="a"), data={"x": "1"}), namespace=namespace
    )
    assert created.metadata.uid
    with pytest.raises(AlreadyExistsError):
        await client.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=namespace)

    merged = await client.patch(CONFIG_MAPS, "a", {"data": {"x": None, "y": "2"}}, namespace=namespace)
    assert merged.data == {"y": "2"}
    operations = [{"op": "test", "path": "/data/y", "value": "2"}, {"op": "add", "path": "/data/z", "value": "3"}]
    patched = await client.patch(CONFIG_MAPS, "a", operations, namespace=namespace)
    assert patched.data == {"y": "2", "z": "3"}
    with pytest.raises(InvalidError):
        await client.patch(CONFIG_MAPS, "a", [{**operations[0], "value": "no"}], namespace=namespace)

    with pytest.raises(ConflictError):  # `created` is of an older resource version
        await client.replace(CONFIG_MAPS, created, name="a", namespace=namespace)
    replaced = await client.replace(
        CONFIG_MAPS, ConfigMap(metadata=patched.metadata, data={"w": "4"}), name="a", namespace=namespace
    )
    assert await client.get(CONFIG_MAPS, "a", namespace=namespace) == replaced

    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAPS, "a", namespace=namespace, uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAPS, "a", namespace=namespace, resource_version=created.metadata.resource_version)
    await client.delete(
        CONFIG_MAPS,
        "a",
        namespace=namespace,
        uid=replaced.metadata.uid,
        resource_version=replaced.metadata.resource_version,
    )
    for call in (
        client.get(CONFIG_MAPS, "a", namespace=namespace),
        client.delete(CONFIG_MAPS, "a", namespace=namespace),
    ):
        with pytest.raises(NotFoundError):
            await call


async def test_refused_documents_name_the_field(client: KubeClient, namespace: str) -> None:
    with pytest.raises(InvalidError, match=r"metadata\.name"):
        await client.create(CONFIG_MAPS, {"metadata": {"name": "Not_A_Name"}}, namespace=namespace)


async def test_a_namespace_that_goes_is_told_from_a_missing_right(client: KubeClient) -> None:
    name = f"client-{secrets.token_hex(4)}"
    await client.create(NAMESPACES, {"metadata": {"name": name}})
    held = {"metadata": {"name": "held", "finalizers": ["coil.test/hold"]}}
    await client.create(CONFIG_MAPS, held, namespace=name)
    try:
        await client.delete(NAMESPACES, name)
        with pytest.raises(NamespaceTerminatingError):
            await client.create(CONFIG_MAPS, {"metadata": {"name": "late"}}, namespace=name)
    finally:
        await client.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, namespace=name)


async def test_a_kind_that_is_not_served_is_not_a_missing_object(client: KubeClient) -> None:
    unserved = Resource("not.installed", "v1", "nothings", "Nothing", namespaced=False, type=Nothing)
    with pytest.raises(UnavailableError, match="404"):
        await client.get(unserved, "a")
    with pytest.raises(UnavailableError, match="404"):
        await client.list(unserved)


async def test_pages_selectors_and_expired_tokens(client: KubeClient, namespace: str, apiserver: ControlPlane) -> None:
    for number in range(7):
        body = {"metadata": {"name": f"n{number}", "labels": {"odd": str(number % 2)}}}
        await client.create(CONFIG_MAPS, body, namespace=namespace)
    odd = await client.list(CONFIG_MAPS, namespace=namespace, labels="odd=1")
    assert [item.metadata.name for item in odd] == ["n1", "n3", "n5"]
    one = await client.list(CONFIG_MAPS, namespace=namespace, fields="metadata.name=n4")
    assert [item.metadata.name for item in one] == ["n4"]

    collection = client.collection(CONFIG_MAPS, namespace=namespace, labels="odd")
    first = await collection.list_page(limit=3, continue_token="")
    assert len(first.items) == 3
    second = await collection.list_page(limit=3, continue_token=first.continue_token)
    assert second.resource_version == first.resource_version
    await client.delete(CONFIG_MAPS, "n0", namespace=namespace)
    await asyncio.to_thread(apiserver.compact_etcd)
    # It serves pages of a list from its memory for as long as it remembers.
    await asyncio.to_thread(apiserver.restart_apiserver)
    with pytest.raises(GoneError):
        await collection.list_page(limit=3, continue_token=second.continue_token)


@pytest.fixture
def account(apiserver: ControlPlane) -> Iterator[str]:
    name = f"client-{secrets.token_hex(4)}"
    apiserver.kubectl("create", "serviceaccount", name, "--namespace=kube-system")
    yield name
    apiserver.kubectl("delete", "serviceaccount", name, "--namespace=kube-system")


async def test_rbac_speaks_for_itself(apiserver: ControlPlane, account: str) -> None:
    async with KubeClient.connect(apiserver.kubeconfig_for(account)) as client:
        with pytest.raises(ForbiddenError, match=f"kube-system:{account}.* cannot list resource .configmaps."):
            await client.list(CONFIG_MAPS)


async def test_a_pods_credentials_and_their_rotation(apiserver: ControlPlane, account: str, tmp_path: Path) -> None:
    kubeconfig = yaml.safe_load(apiserver.kubeconfig_for(account).read_text())
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    good = Path(user["tokenFile"]).read_text()
    (tmp_path / "ca.crt").write_bytes(Path(cluster["certificate-authority"]).read_bytes())
    (tmp_path / "token").write_text(good[:-8] + "AAAAAAAA")
    url = urlsplit(cluster["server"])
    environ = {"KUBERNETES_SERVICE_HOST": url.hostname or "", "KUBERNETES_SERVICE_PORT": str(url.port)}
    async with KubeClient(Access.in_cluster(directory=tmp_path, environ=environ)) as client:
        with pytest.raises(UnauthorizedError):
            await client.list(CONFIG_MAPS)
        (tmp_path / "token").write_text(good)
        with pytest.raises(ForbiddenError) as caught:  # known by now, and without a right
            await client.list(CONFIG_MAPS)
        assert account in str(caught.value)


async def test_a_stranger_is_not_trusted(apiserver: ControlPlane, tmp_path: Path) -> None:
    """A server whose certificate is signed by somebody else gets no request, let alone a credential."""
    kubeconfig = yaml.safe_load(apiserver.admin_kubeconfig.read_text())
    del kubeconfig["clusters"][0]["cluster"]["certificate-authority"]
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    async with KubeClient.connect(path) as client:
        with pytest.raises(ApiError, match=r"[cC]ertificate"):
            await client.list(NAMESPACES)

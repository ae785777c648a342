"""What the suite relies on in an API server. Run on the one in memory, and on the real one.

Subclasses give a fixture `client`, and a name that is free to use. The namespaces are those that every cluster has.
"""

from typing import Any

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPoolStatus, Usage
from coil.crd.block_request import BLOCK_REQUESTS, BlockRequest, BlockRequestSpec
from coil.crd.egress import EGRESSES
from coil.crd.meta import ObjectMeta
from coil.crd.names import FINALIZER, NodeName, PoolName
from coil.kube.api_client import ApiClient
from coil.kube.errors import AlreadyExistsError, ConflictError, InvalidError, NotFoundError


def block(name: str, *finalizers: str, **labels: str) -> AddressBlock:
    metadata = ObjectMeta(name=name, labels=labels, finalizers=finalizers)
    return AddressBlock(metadata=metadata, index=0, ipv4="10.2.0.0/27")


def request(name: str) -> BlockRequest:
    spec = BlockRequestSpec(node_name=NodeName("node1"), pool_name=PoolName("default"))
    return BlockRequest(metadata=ObjectMeta(name=name), spec=spec)


def egress(name: str, *destinations: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"destinations": list(destinations or ("192.0.2.0/24",))}}


def precondition(metadata: ObjectMeta) -> dict[str, Any]:
    return {"resourceVersion": metadata.resource_version}


class ApiClientContract:
    async def test_what_is_created_is_read_back(self, client: ApiClient, name: str) -> None:
        created = await client.create(ADDRESS_BLOCKS, block(name, FINALIZER, a="b"))
        assert created.metadata.uid
        assert created.metadata.resource_version
        assert created.metadata.creation_timestamp is not None
        assert (created.index, created.ipv4, created.ipv6) == (0, "10.2.0.0/27", None)
        assert (created.metadata.labels, created.metadata.finalizers) == ({"a": "b"}, (FINALIZER,))
        assert await client.get(ADDRESS_BLOCKS, name) == created

    async def test_a_name_is_given_once(self, client: ApiClient, name: str) -> None:
        first = await client.create(ADDRESS_BLOCKS, block(name))
        with pytest.raises(AlreadyExistsError):
            await client.create(ADDRESS_BLOCKS, block(name, a="b"))
        assert await client.get(ADDRESS_BLOCKS, name) == first

    async def test_what_is_not_there(self, client: ApiClient, name: str) -> None:
        with pytest.raises(NotFoundError):
            await client.get(ADDRESS_BLOCKS, name)
        with pytest.raises(NotFoundError):
            await client.patch(ADDRESS_BLOCKS, name, {"metadata": {"labels": {"a": "b"}}})
        with pytest.raises(NotFoundError):
            await client.patch(BLOCK_REQUESTS, name, {"status": {}}, subresource="status")
        with pytest.raises(NotFoundError):
            await client.delete(ADDRESS_BLOCKS, name)

    async def test_lists_select_by_label(self, client: ApiClient, name: str) -> None:
        await client.create(ADDRESS_BLOCKS, block(name, group=name))
        await client.create(ADDRESS_BLOCKS, block(f"{name}-2", group="other"))
        assert [item.name for item in await client.list(ADDRESS_BLOCKS, labels=f"group={name}")] == [name]
        assert {name, f"{name}-2"} <= {item.name for item in await client.list(ADDRESS_BLOCKS)}

    async def test_lists_select_by_field(self, client: ApiClient, name: str) -> None:
        for each in (name, f"{name}-2"):
            await client.create(ADDRESS_BLOCKS, block(each, group=name))
        found = await client.list(ADDRESS_BLOCKS, labels=f"group={name}", fields=f"metadata.name={name}-2")
        assert [item.name for item in found] == [f"{name}-2"]

    async def test_a_patch_merges(self, client: ApiClient, name: str) -> None:
        created = await client.create(ADDRESS_BLOCKS, block(name, FINALIZER, a="b", c="d"))
        patched = await client.patch(ADDRESS_BLOCKS, name, {"metadata": {"labels": {"a": None, "e": "f"}}})
        assert patched.metadata.labels == {"c": "d", "e": "f"}
        assert patched.metadata.finalizers == (FINALIZER,)
        assert patched.metadata.resource_version != created.metadata.resource_version

    async def test_a_patch_that_changes_nothing_is_no_new_version(self, client: ApiClient, name: str) -> None:
        created = await client.create(ADDRESS_BLOCKS, block(name, a="b"))
        patched = await client.patch(
            ADDRESS_BLOCKS, name, {"metadata": {**precondition(created.metadata), "labels": {"a": "b"}}}
        )
        assert patched == created

    async def test_a_patch_of_an_old_version_is_a_conflict(self, client: ApiClient, name: str) -> None:
        created = await client.create(ADDRESS_BLOCKS, block(name))
        changed = await client.patch(ADDRESS_BLOCKS, name, {"metadata": {"labels": {"a": "b"}}})
        old = precondition(created.metadata)
        with pytest.raises(ConflictError):
            await client.patch(ADDRESS_BLOCKS, name, {"metadata": {**old, "labels": {"x": "y"}}})
        assert await client.get(ADDRESS_BLOCKS, name) == changed

    async def test_a_patch_meant_for_a_predecessor_of_that_name_is_a_conflict(
        self, client: ApiClient, name: str
    ) -> None:
        first = await client.create(ADDRESS_BLOCKS, block(name))
        await client.delete(ADDRESS_BLOCKS, name)
        second = await client.create(ADDRESS_BLOCKS, block(name))
        with pytest.raises(ConflictError):
            await client.patch(
                ADDRESS_BLOCKS, name, {"metadata": {**precondition(first.metadata), "labels": {"x": "y"}}}
            )
        assert await client.get(ADDRESS_BLOCKS, name) == second

    async def test_the_status_is_written_apart_from_the_rest(self, client: ApiClient, name: str) -> None:
        await client.create(BLOCK_REQUESTS, request(name))
        spec = {"poolName": "other"}
        await client.patch(
            BLOCK_REQUESTS, name, {"status": {"addressBlockName": "x-0"}, "spec": spec}, subresource="status"
        )
        found = await client.get(BLOCK_REQUESTS, name)
        assert (found.status.address_block_name, found.spec.pool_name) == ("x-0", "default")
        await client.patch(BLOCK_REQUESTS, name, {"status": {"addressBlockName": "y-0"}, "spec": spec})
        found = await client.get(BLOCK_REQUESTS, name)
        assert (found.status.address_block_name, found.spec.pool_name) == ("x-0", "other")
        await client.patch(BLOCK_REQUESTS, name, {"status": {"addressBlockName": None}}, subresource="status")
        assert (await client.get(BLOCK_REQUESTS, name)).status.address_block_name == ""

    async def test_a_pools_status_with_a_list_is_replaced_whole(self, client: ApiClient, name: str) -> None:
        body = {"metadata": {"name": name}, "spec": {"subnets": [{"ipv4": "10.99.0.0/24"}]}}
        created = await client.create(ADDRESS_POOLS, body)
        assert created.status == AddressPoolStatus()
        for reason in ("HasRoom", "Exhausted"):
            conditions = [{"type": "Full", "status": "False", "reason": reason}]
            patch = {"status": {"blocks": {"total": 2**63 - 1, "used": 0}, "conditions": conditions}}
            changed = await client.patch(ADDRESS_POOLS, name, patch, subresource="status")
            assert [condition.reason for condition in changed.status.conditions] == [reason]
            assert changed.status.blocks == Usage(total=2**63 - 1)
            assert changed.spec == created.spec
            assert changed.metadata.generation == created.metadata.generation

    async def test_the_status_of_an_old_version_is_a_conflict(self, client: ApiClient, name: str) -> None:
        created = await client.create(BLOCK_REQUESTS, request(name))
        patch = {"metadata": precondition(created.metadata), "status": {"addressBlockName": "x-0"}}
        changed = await client.patch(BLOCK_REQUESTS, name, patch, subresource="status")
        with pytest.raises(ConflictError):
            await client.patch(
                BLOCK_REQUESTS, name, {**patch, "status": {"addressBlockName": "y-0"}}, subresource="status"
            )
        assert await client.get(BLOCK_REQUESTS, name) == changed

    async def test_a_finalizer_holds_what_is_deleted(self, client: ApiClient, name: str) -> None:
        await client.create(ADDRESS_BLOCKS, block(name, FINALIZER))
        await client.delete(ADDRESS_BLOCKS, name)
        going = await client.get(ADDRESS_BLOCKS, name)
        assert going.metadata.deleting
        await client.delete(ADDRESS_BLOCKS, name)
        await client.patch(ADDRESS_BLOCKS, name, {"metadata": {**precondition(going.metadata), "finalizers": []}})
        with pytest.raises(NotFoundError):
            await client.get(ADDRESS_BLOCKS, name)

    async def test_a_deletion_meant_for_another_object_is_a_conflict(self, client: ApiClient, name: str) -> None:
        created = await client.create(ADDRESS_BLOCKS, block(name))
        with pytest.raises(ConflictError):
            await client.delete(ADDRESS_BLOCKS, name, uid="00000000-0000-4000-8000-000000000000")
        await client.delete(ADDRESS_BLOCKS, name, uid=created.metadata.uid)
        with pytest.raises(NotFoundError):
            await client.get(ADDRESS_BLOCKS, name)

    async def test_a_patch_with_the_uid_of_another_object_is_refused(self, client: ApiClient, name: str) -> None:
        created = await client.create(ADDRESS_BLOCKS, block(name, FINALIZER))
        foreign = {"uid": "00000000-0000-4000-8000-000000000000", "finalizers": []}
        with pytest.raises(InvalidError):
            await client.patch(ADDRESS_BLOCKS, name, {"metadata": foreign})
        assert await client.get(ADDRESS_BLOCKS, name) == created
        patched = await client.patch(
            ADDRESS_BLOCKS, name, {"metadata": {"uid": created.metadata.uid, "finalizers": []}}
        )
        assert patched.metadata.finalizers == ()

    async def test_a_json_patch_is_applied_whole_or_not_at_all(self, client: ApiClient, name: str) -> None:
        created = await client.create(ADDRESS_BLOCKS, block(name, a="b"))
        change = {"op": "add", "path": "/metadata/labels/a", "value": "c"}
        with pytest.raises(InvalidError):
            await client.patch(
                ADDRESS_BLOCKS, name, [change, {"op": "test", "path": "/metadata/labels/a", "value": "b"}]
            )
        assert await client.get(ADDRESS_BLOCKS, name) == created
        patched = await client.patch(
            ADDRESS_BLOCKS, name, [{"op": "test", "path": "/metadata/labels/a", "value": "b"}, change]
        )
        assert patched.metadata.labels == {"a": "c"}

    async def test_a_json_patch_of_a_list(self, client: ApiClient, name: str) -> None:
        """As the conditions of a node are patched."""
        await client.create(ADDRESS_BLOCKS, block(name, "example.com/one"))
        path = "/metadata/finalizers"
        await client.patch(ADDRESS_BLOCKS, name, [{"op": "add", "path": f"{path}/-", "value": "example.com/two"}])
        patched = await client.patch(
            ADDRESS_BLOCKS, name, [{"op": "replace", "path": f"{path}/1", "value": "example.com/three"}]
        )
        assert patched.metadata.finalizers == ("example.com/one", "example.com/three")
        with pytest.raises(InvalidError):
            await client.patch(ADDRESS_BLOCKS, name, [{"op": "test", "path": f"{path}/7/name", "value": "x"}])
        await client.patch(ADDRESS_BLOCKS, name, {"metadata": {"finalizers": []}})

    async def test_namespaces_keep_equal_names_apart(self, client: ApiClient, name: str) -> None:
        for namespace in ("default", "kube-system"):
            created = await client.create(EGRESSES, egress(name), namespace=namespace)
            assert created.metadata.namespace == namespace
        await client.delete(EGRESSES, name, namespace="default")
        with pytest.raises(NotFoundError):
            await client.get(EGRESSES, name, namespace="default")
        assert (await client.get(EGRESSES, name, namespace="kube-system")).metadata.name == name
        assert name not in [item.metadata.name for item in await client.list(EGRESSES, namespace="default")]
        assert name in [item.metadata.name for item in await client.list(EGRESSES)]
        await client.delete(EGRESSES, name, namespace="kube-system")

    async def test_the_scope_of_a_kind_is_kept(self, client: ApiClient, name: str) -> None:
        with pytest.raises(ValueError, match="namespace"):
            await client.get(EGRESSES, name)
        with pytest.raises(ValueError, match="namespace"):
            await client.get(ADDRESS_BLOCKS, name, namespace="default")

    async def test_a_document_is_replaced_whole(self, client: ApiClient, name: str) -> None:
        created = await client.create(EGRESSES, egress(name), namespace="default")
        document = await client.get_document(EGRESSES, name, namespace="default")
        same = await client.replace(EGRESSES, document, name=name, namespace="default")
        assert same.metadata.resource_version == created.metadata.resource_version, "nothing new was said"
        document["spec"] = {"destinations": ["198.51.100.0/24"]}
        replaced = await client.replace(EGRESSES, document, name=name, namespace="default")
        assert replaced.spec.destinations == ("198.51.100.0/24",)
        assert replaced.metadata.uid == created.metadata.uid
        assert replaced.metadata.generation == created.metadata.generation + 1
        with pytest.raises(ConflictError):
            await client.replace(EGRESSES, document, name=name, namespace="default")
        del document["metadata"]["resourceVersion"]
        with pytest.raises(InvalidError):
            await client.replace(EGRESSES, document, name=name, namespace="default")
        await client.delete(EGRESSES, name, namespace="default")
        # By what it holds to be broken first: a precondition (Kubernetes 1.20), or that there is an object (1.37).
        with pytest.raises((ConflictError, NotFoundError)):
            await client.replace(EGRESSES, document, name=name, namespace="default")
        del document["metadata"]["uid"]
        with pytest.raises(NotFoundError):
            await client.replace(EGRESSES, document, name=name, namespace="default")

    async def test_a_status_is_replaced_apart_from_the_rest(self, client: ApiClient, name: str) -> None:
        await client.create(EGRESSES, egress(name) | {"status": {"replicas": 7}}, namespace="default")
        document = await client.get_document(EGRESSES, name, namespace="default")
        assert "status" not in document, "nobody creates one with its status"
        spec = document["spec"]
        document |= {"status": {"replicas": 3, "selector": "a=b"}, "spec": {"destinations": ["10.0.0.0/8"]}}
        stored = await client.replace(EGRESSES, document, name=name, namespace="default", subresource="status")
        assert (stored.status.replicas, list(stored.spec.destinations)) == (3, spec["destinations"])
        document = await client.get_document(EGRESSES, name, namespace="default")
        document |= {"status": {"replicas": 9}}
        stored = await client.replace(EGRESSES, document, name=name, namespace="default")
        assert stored.status.replicas == 3
        await client.delete(EGRESSES, name, namespace="default")

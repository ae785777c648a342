"""What one coild has to listen to, in bytes, while all the other nodes get blocks.

A real coild and the plugin, on the way to the API server a relay that counts; a real controller; for the other nodes
their requests. Beside it, what a daemon would hear that follows all blocks and requests instead of its node's.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import NAMESPACES
from coil.crd.names import DEFAULT_POOL
from integration.bench.bare_client import MERGE_PATCH, Call
from integration.bench.byte_relay import ByteRelay, counting_bytes
from integration.bench.cni_side import coil_netconf
from integration.bench.ipam_stage import Stage, open_stage
from integration.bench.ipam_text import create_namespace, node_name
from integration.bench.plugin_exec import Operation, execute_plugins
from integration.bench.pod_namespace import pod_namespaces
from integration.cluster.kubeconfig import Server, write_token_kubeconfig
from integration.deployment import COILD_HEALTH_PORT, coild_command, install_plugin, ready_probe

_SERVED = node_name(0)
_IDLE_SECONDS = 120.0
"""Long enough for two bookmarks of each watch, which come every minute or so."""

_SETTLE_SECONDS = 3.0
_START_SECONDS = 120.0
_CHANGED_NAMESPACES = 50
_WIDTH = 4
"""Requests that are made at a time: the API server ends watches that do not keep up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that coild received, TLS included."""

    nodes: int
    namespaces: int
    start: int
    """Until it was ready."""
    idle_per_minute: float
    churn: int
    """While each node, its own too, got a block."""
    everything: int
    """What watches of all blocks and requests brought at the same time, as plain text."""
    namespace_event: float
    """For one change of one namespace."""

    def describe(self) -> str:
        return (
            f"received by one coild while {self.nodes} nodes got a block each, its own one of them, by a pod's ADD "
            f"(watches of all blocks and requests: {self.everything} bytes); start with {self.namespaces} namespaces "
            f"{self.start}, quiet {self.idle_per_minute:.0f} a minute, {self.namespace_event:.0f} for each change of "
            f"any namespace"
        )


async def measure_traffic(*, nodes: int, namespaces: int) -> Traffic:
    """Inside the room only: coild writes rules and routes."""
    async with open_stage(nodes=nodes) as stage:
        await stage.filler.send_chains([create_namespace(number)] for number in range(namespaces))
        await stage.add_pool(DEFAULT_POOL, "10.0.0.0/12")
        await stage.start_controller()
        await stage.hand_over()
        async with counting_bytes(str(stage.plane.address), stage.plane.port) as relay, _coild(stage, relay) as pod:
            start = relay.received
            await asyncio.sleep(_IDLE_SECONDS)
            idle = relay.received - start
            churn, everything = await _churn(stage, relay, pod)
            changes = await _change_namespaces(stage, relay, first=namespaces)
    return Traffic(
        nodes=nodes,
        namespaces=namespaces,
        start=start,
        idle_per_minute=idle / _IDLE_SECONDS * 60,
        churn=churn,
        everything=everything,
        namespace_event=changes / (2 * _CHANGED_NAMESPACES),
    )


async def _churn(stage: Stage, relay: ByteRelay, pod: Operation) -> tuple[int, int]:
    """A block for each node: what coild received, and what there was to receive."""
    heard = [0]
    watches = [
        asyncio.create_task(_hear(stage, path, heard)) for path in (ADDRESS_BLOCKS.path(), BLOCK_REQUESTS.path())
    ]
    try:
        await asyncio.sleep(_SETTLE_SECONDS)
        already, heard[0] = relay.received, 0
        async with stage.answers(DEFAULT_POOL) as answered:
            added = asyncio.create_task(asyncio.to_thread(execute_plugins, [pod], width=1))
            await stage.add_requests(DEFAULT_POOL, but={_SERVED}, width=_WIDTH)
            await answered
            await added
        await asyncio.sleep(_SETTLE_SECONDS)
        for watch in watches:
            if watch.done():
                watch.result()
        return relay.received - already, heard[0]
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.wait(watches)


async def _change_namespaces(stage: Stage, relay: ByteRelay, *, first: int) -> int:
    """Two changes of each of some new namespaces; what coild received for them."""
    already = relay.received
    note = json.dumps({"metadata": {"annotations": {"changed": "yes"}}}).encode()
    for number in range(first, first + _CHANGED_NAMESPACES):
        creation = create_namespace(number)
        name = json.loads(creation.body or b"")["metadata"]["name"]
        await stage.filler.send(creation)
        await stage.filler.send(Call("PATCH", NAMESPACES.path(name=name), note, MERGE_PATCH))
    await asyncio.sleep(_SETTLE_SECONDS)
    return relay.received - already


async def _hear(stage: Stage, path: str, heard: list[int]) -> None:
    version = (await stage.kube.collection(BLOCK_REQUESTS).list_page(limit=1, continue_token="")).resource_version
    async with stage.filler.stream(f"{path}?watch=true&resourceVersion={version}") as content:
        while piece := await content.readany():
            heard[0] += len(piece)
    raise RuntimeError(f"the watch of {path} was ended early: not all of it was heard")


@asynccontextmanager
async def _coild(stage: Stage, relay: ByteRelay) -> AsyncIterator[Operation]:
    """coild behind the relay, ready; gives the ADD of a pod on its node."""
    plane = stage.plane
    with TemporaryDirectory(prefix="coil-bench-node-") as folder, pod_namespaces(1) as pods:
        socket, bin_dir, etc_dir = (Path(folder, name) for name in ("coild.sock", "bin", "net.d"))
        for target in (bin_dir, etc_dir):
            target.mkdir()
        plugin = install_plugin(bin_dir=bin_dir, etc_dir=etc_dir, socket=socket)
        command = await asyncio.to_thread(coild_command, plane, socket=socket, flags=["--mtu=1500"])
        server = Server(f"https://{plane.address}:{relay.port}", plane.credentials.server.authority)
        token = plane.workspace.folder / "service-accounts" / "kube-system.coild.token"
        kubeconfig = write_token_kubeconfig(Path(folder, "kubeconfig"), server, token)
        process = plane.workspace.spawn(
            "coild", [*command, f"--kubeconfig={kubeconfig}"], env={"COIL_NODE_NAME": _SERVED}
        )
        try:
            ready = ready_probe(COILD_HEALTH_PORT)
            await asyncio.to_thread(process.wait_ready, ready, timeout=_START_SECONDS)
            arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=tenant-0000;K8S_POD_NAME=pod;K8S_POD_INFRA_CONTAINER_ID=c0"
            yield Operation(
                plugin=plugin,
                command="ADD",
                netconf=coil_netconf(socket),
                container_id="c0" * 32,
                netns=pods.paths[0],
                arguments=arguments,
            )
        finally:
            await asyncio.to_thread(process.stop)

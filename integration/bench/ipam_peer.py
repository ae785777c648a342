"""The peer of the ipam-controller: answers all open requests of a pool with the same writes, decided beforehand.

    python -m integration.bench.ipam_peer KUBECONFIG POOL CONNECTIONS

Reads pool and requests, prepares every byte, says `ready`, waits for a line of input, writes, and ends. So what is
timed is an API server that is written to by a client that has nothing to think about.
"""

import asyncio
import sys
from pathlib import Path

from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.ipam.layout import parse_layout
from coil.kube.client import KubeClient
from integration.bench.bare_client import BareClient, Call
from integration.bench.ipam_text import answer_request


async def answer_all(kubeconfig: Path, pool_name: str, *, connections: int) -> None:
    async with KubeClient.connect(kubeconfig) as kube:
        pool = await kube.get(ADDRESS_POOLS, pool_name)
        requests = [item for item in await kube.list(BLOCK_REQUESTS) if item.spec.pool_name == pool_name]
    layout = parse_layout(pool)
    chains: list[tuple[Call, ...]] = [
        answer_request(request, layout.block_at(index), pool=pool) for index, request in enumerate(requests)
    ]
    async with BareClient(kubeconfig, connections=connections) as client:
        await client.send(Call("GET", ADDRESS_POOLS.path(name=pool_name)))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await client.send_chains(chains)


if __name__ == "__main__":
    asyncio.run(answer_all(Path(sys.argv[1]), sys.argv[2], connections=int(sys.argv[3])))

"""`python -m integration.screenshots [SUBJECT ...]`: takes the pictures of the inspection pages in docs/, as root, in
three minutes. The subjects are `pools` and `interfaces`; without one, it takes all.

All of it is real: an API server, an ipam-controller, coild, pods made by the plugin, and a Chromium that looks. Only
the other nodes of the cluster are names: nobody runs there, but the controller gives them blocks all the same. And the
VPC is that of the tests.
"""

import asyncio
import itertools
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from integration.apiserver.inspected_world import NODE_PAGE, InspectedWorld
from integration.apiserver.plane_pool import PlanePool
from integration.apiserver.sandbox import PodName, Sandbox
from integration.aws.node import EniNode
from integration.aws.world import EniWorld
from integration.browser import Browser, Scheme, open_browser
from integration.cluster.control_plane import ControlPlane
from integration.deployment import apply
from integration.patience import wait_until

DOCS = Path(__file__).resolve().parent.parent / "docs"
MAX_BYTES = 200_000
SEED = 7

POOLS: Mapping[str, tuple[int, Mapping[str, str]]] = {
    "default": (5, {"ipv4": "10.100.0.0/18", "ipv6": "fd10:100::/114"}),
    "edge": (4, {"ipv4": "192.0.2.0/25"}),
    "lab": (6, {"ipv6": "fd20:5::/64"}),
    "legacy": (4, {"ipv4": "10.7.0.0/24"}),
}
APPS = {
    "apps": ("cart", "catalog", "checkout", "frontend", "payments", "redis", "search", "sessions"),
    "edge": ("ingress", "nat-probe"),
    "lab": ("notebook", "trainer"),
}
PODS = {"apps": 84, "edge": 11, "lab": 25}
GONE = {"apps": 15, "edge": 2, "lab": 6}
"""How many pods there were, and how many of them have gone since."""

NODES = 14
BATCHES = 26
BATCH_SECONDS = 2.0
HISTORY = "1m"

VPC_PODS, VPC_GONE = 61, 9
VPC_FLAGS = ("--enable-prefix-delegation=true", "--warm-prefix-target=1", "--cooling=1h")

HOST = "coil-ipam-controller-0"
NAMED = "--named"
"""Given to the run that has the host's name to itself."""


def main() -> int:
    """Write the pictures; an exit code."""
    if NAMED not in sys.argv:
        # The controller tells the name of its host, which is nobody's business here.
        again = ["unshare", "--uts", sys.executable, "-m", __spec__.name, NAMED, *sys.argv[1:]]
        return subprocess.run(again, check=False).returncode
    socket.sethostname(HOST)
    chosen = [argument for argument in sys.argv[1:] if argument != NAMED]
    with PlanePool() as planes:
        for subject in chosen or SUBJECTS:
            with planes.lend() as plane, tempfile.TemporaryDirectory() as folder:
                SUBJECTS[subject](plane, Path(folder))
    return 0


def show_pools(plane: ControlPlane, folder: Path) -> None:
    rng = Random(SEED)
    with InspectedWorld.up(plane, POOLS, history=HISTORY) as world:
        reserve_block(world)
        add_nodes(world)
        fill_node(world, rng)
        drain_block(world)
        fill_cluster(world, rng)
        asyncio.run(take("cluster", world.cluster_page, [], folder))
        asyncio.run(take("node", NODE_PAGE, world.node.namespaces.entrance, folder))


def show_interfaces(plane: ControlPlane, folder: Path) -> None:
    with EniWorld.up(plane) as world:
        node = world.nodes[0]
        node.start_coild(*VPC_FLAGS)
        fill_interfaces(node, Random(SEED))
        asyncio.run(take("interfaces", NODE_PAGE, node.namespaces.entrance, folder))


SUBJECTS: Mapping[str, Callable[[ControlPlane, Path], None]] = {"pools": show_pools, "interfaces": show_interfaces}


def fill_interfaces(node: EniNode, rng: Random) -> None:
    """Pods with addresses of several interfaces, some of which have gone a moment ago."""
    pods: list[Sandbox] = []
    for name in pod_names("apps", VPC_PODS, rng):
        pods.append(node.make_sandbox(PodName("apps", name), container_id=secrets.token_hex(32)))
        node.runtime.add(pods[-1])
    for pod in rng.sample(pods, VPC_GONE):
        node.runtime.delete(pod)
        pod.destroy()


def pod_names(namespace: str, number: int, rng: Random) -> list[str]:
    """As Deployments name them."""
    return [f"{rng.choice(APPS[namespace])}-{rng.getrandbits(36):09x}-{rng.getrandbits(20):05x}" for _ in range(number)]


def reserve_block(world: InspectedWorld) -> None:
    """Addresses that another program still uses."""
    labels = {"pool": "legacy", "node": world.node.name, "reserved": "true"}
    metadata = {"name": "legacy-2", "labels": {f"coil.cybozu.com/{key}": value for key, value in labels.items()}}
    kind = {"apiVersion": "coil.cybozu.com/v2", "kind": "AddressBlock"}
    apply(world.node.plane, {**kind, "metadata": metadata, "index": 2, "ipv4": "10.7.0.32/28"})


def add_nodes(world: InspectedWorld) -> None:
    names = (f"worker-{number:02}" for number in range(1, NODES + 1))
    apply(world.node.plane, *({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in names))


def fill_node(world: InspectedWorld, rng: Random) -> None:
    """Pods of several namespaces, some of which have gone a moment ago."""
    for namespace, number in PODS.items():
        names = pod_names(namespace, number, rng)
        for name in names:
            world.add(namespace, name)
        for name in rng.sample(names, GONE[namespace]):
            world.delete(namespace, name)


def drain_block(world: InspectedWorld) -> None:
    """Somebody asks for a block back that still has pods."""
    world.node.plane.kubectl("delete", "addressblock", "default-1", "--wait=false")
    wait_until(lambda: "draining" in world.curl(NODE_PAGE), what="a draining block")


def fill_cluster(world: InspectedWorld, rng: Random) -> None:
    """Nodes ask for blocks, for as long as the history is; in the end for more than there are."""
    number = itertools.count()
    for batch in range(BATCHES):
        due = time.monotonic() + BATCH_SECONDS
        apply(world.node.plane, *(ask(next(number), "default", rng) for _ in range(rng.randrange(2, 9))))
        if batch % 4 == 0:
            apply(world.node.plane, ask(next(number), rng.choice(["edge", "edge", "lab"]), rng))
        time.sleep(max(0.0, due - time.monotonic()))
    apply(world.node.plane, *(ask(next(number), "edge", rng) for _ in range(3)))


def ask(number: int, pool: str, rng: Random) -> dict[str, Any]:
    spec = {"nodeName": f"worker-{rng.randint(1, NODES):02}", "poolName": pool}
    kind = {"apiVersion": "coil.cybozu.com/v2", "kind": "BlockRequest"}
    return {**kind, "metadata": {"name": f"req-{spec['nodeName']}-{number:03}"}, "spec": spec}


async def take(page: str, url: str, entrance: Sequence[str], folder: Path) -> None:
    """All pictures of a page, from where a person would see it: `entrance` leads there."""
    profile = folder / page
    profile.mkdir()
    async with open_browser(profile, entrance=entrance) as browser:
        for name, query, scheme in shots(page):
            await shoot(browser, f"{url}{query}", scheme, DOCS / f"{name}.png")


def shots(page: str) -> Iterator[tuple[str, str, Scheme]]:
    """The name of each picture, what is searched for, and the colours."""
    yield f"inspection-{page}", "", "light"
    if page != "interfaces":
        yield f"inspection-{page}-dark", "?q=redis" if page == "node" else "?q=worker-07", "dark"


async def shoot(browser: Browser, url: str, scheme: Scheme, file: Path) -> None:
    visit = await browser.open(url, scheme=scheme)
    cell = visit.page.locator(".grid i.allocated, .grid i.used").nth(5)
    if "?" not in url:
        await cell.hover()
    await visit.page.screenshot(path=file)
    await visit.page.close()
    size = file.stat().st_size
    print(f"{file.relative_to(DOCS.parent)}: {size} bytes")
    if visit.errors or size > MAX_BYTES:
        raise SystemExit(f"{file.name}: {visit.errors or 'too large'}")


if __name__ == "__main__":
    sys.exit(main())

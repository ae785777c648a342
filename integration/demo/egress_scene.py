"""The demo's egress NAT, on a kernel with Foo-over-UDP: `egress_part` starts it, with a control plane to talk to.

On the stage of the tests (`integration.egress`): two nodes with coild and kube-proxy, and a host outside the cluster.
Here an Egress gets two router pods, and an annotated pod and another one ask the host whom it sees. Every claim is
checked; the first that does not hold ends it with exit code 1 and what the programs have logged.
"""

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from integration.cluster.network import NetworkError
from integration.cluster.process import ComponentError
from integration.demo.narration import DemoError, logs_if_it_fails, print_table, step
from integration.demo.sighting import Sighting, find_mistakes
from integration.demo.tunnel_line import TunnelLine, read_tunnel_lines
from integration.egress.api import ApiError, Document
from integration.egress.conversation import ask
from integration.egress.external_host import ADDRESSES
from integration.egress.pod import RunningPod
from integration.egress.station import PATIENCE, PAUSE
from integration.egress.world import ANNOTATION, EgressUnderTest, World
from integration.patience import wait_until

ROUTERS = 2
_EXPECTED = (ApiError, AssertionError, ComponentError, DemoError, NetworkError, OSError, subprocess.SubprocessError)
_CONCLUSION = (
    "The annotated pod was seen as a router, in each family as the one that kube-proxy chose; the other one as itself."
)
_LOST_AFTER = 5.0
"""Seconds, after which a question over UDP counts as lost."""


def main() -> int:
    try:
        with ExitStack() as stage:
            world = step(
                "two nodes with coild and kube-proxy; a host on the internet",
                lambda: stage.enter_context(World.up()),
            )
            stage.enter_context(logs_if_it_fails(world.logs))
            show(world)
    except _EXPECTED as error:
        print(f"\n{str(error) or repr(error)}", file=sys.stderr)
        return 1
    return 0


def show(world: World) -> None:
    """The scene proper. Raises DemoError at the first claim that does not hold."""
    with ExitStack() as made:
        egress = step(
            f"an Egress: Coil makes a Service and {ROUTERS} router pods, which become ready",
            lambda: made.enter_context(world.egress(replicas=ROUTERS)),
        )
        print(f"\n{render_egress(world.api.get(egress.path))}\n", flush=True)
        annotated = step(
            f"a client pod, annotated {ANNOTATION}: {egress.name}",
            lambda: made.enter_context(world.client(egress.name)),
        )
        plain = step(
            "a pod without annotation, on the same node",
            lambda: made.enter_context(world.client()),
        )
        print_pods(egress, annotated=annotated, plain=plain)

        sightings = step(
            "both ask the internet host something, over UDP in IPv4 and IPv6",
            lambda: [*look(world, annotated, annotated=True), *look(world, plain, annotated=False)],
        )
        routers = router_names(egress)
        print_sightings(sightings, routers)
        if mistakes := find_mistakes(sightings, routers):
            raise DemoError("\n".join(mistakes))
        print(f"{_CONCLUSION}\n", flush=True)

        show_tunnels(egress, annotated=annotated, plain=plain)
        show_failover(world, egress, annotated, serving=sightings[0].seen)
        step("the pods and the Egress deleted: its routers and its Service go", lambda: take_down(made, egress))


def render_egress(document: Document) -> str:
    """The manifest, with the fields that matter here."""
    metadata, spec = document["metadata"], document["spec"]
    lines = [
        f"apiVersion: {document['apiVersion']}",
        f"kind: {document['kind']}",
        "metadata:",
        *(f"  {field}: {metadata[field]}" for field in ("namespace", "name")),
        "spec:",
        f"  replicas: {spec['replicas']}",
        "  destinations:",
        *(f"    - {destination}" for destination in spec["destinations"]),
    ]
    return "\n".join(f"    {line}" for line in lines)


def print_pods(egress: EgressUnderTest, *, annotated: RunningPod, plain: RunningPod) -> None:
    """Who is there, with addresses."""
    roles = [("router", pod) for pod in egress.routers()]
    roles += [("client, annotated", annotated), ("pod without annotation", plain)]
    rows = [(f"Pod {name_of(pod)}", pod.station.name, pod.addresses[4], pod.addresses[6], role) for role, pod in roles]
    rows.append((f"Service {egress.name}", "", egress.addresses[4], egress.addresses[6], "in front of the routers"))
    rows.append(("internet host", "", ADDRESSES[4], ADDRESSES[6], "outside the cluster"))
    print()
    print_table(("WHO", "NODE", "IPV4", "IPV6", "WHAT IT IS"), rows)


def look(world: World, pod: RunningPod, *, annotated: bool) -> list[Sighting]:
    """Have the pod ask the host, once in each family. Questions that are lost are repeated."""
    return [
        Sighting(pod=name_of(pod), annotated=annotated, own=pod.addresses[version], seen=insist(world, pod, version))
        for version in ADDRESSES
    ]


def insist(world: World, pod: RunningPod, version: int) -> str:
    """Ask until there is an answer; returns the address that the host saw. Raises AssertionError if none comes."""
    seen: list[str] = []

    def answered() -> bool:
        if address := ask_once(world, pod, version):
            seen.append(address)
        return bool(seen)

    what = f"{name_of(pod)} has an answer from {ADDRESSES[version]}"
    wait_until(answered, what=what, timeout=PATIENCE, pause=PAUSE)
    return seen[0]


def ask_once(world: World, pod: RunningPod, version: int) -> str:
    """The address that the host saw; empty when a packet was lost."""
    try:
        return ask(pod, world.external, ADDRESSES[version], patience=_LOST_AFTER)
    except TimeoutError:
        return ""


def print_sightings(sightings: Sequence[Sighting], routers: dict[str, str]) -> None:
    """The host's own report."""
    print()
    print_table(
        ("WHO ASKED", "WITH ADDRESS", "THE INTERNET HOST SAW", "WHICH IS"),
        [(sighting.asker, sighting.own, sighting.seen, sighting.who(routers)) for sighting in sightings],
    )


def show_tunnels(egress: EgressUnderTest, *, annotated: RunningPod, plain: RunningPod) -> None:
    """The tunnel devices of every pod; the client's lead to the Service, each router's to the client."""
    service, client = set(egress.addresses.values()), set(annotated.addresses.values())
    wanted = [
        (annotated, "to the Service", service),
        *((router, "to the client", client) for router in egress.routers()),
        (plain, "none", set[str]()),
    ]
    found = step("the tunnel devices in each pod", lambda: [read_tunnels(pod) for pod, _, _ in wanted])
    print()
    for (pod, whereto, peers), tunnels in zip(wanted, found, strict=True):
        print(f"  {name_of(pod)}, {whereto}", *(f"    {tunnel}" for tunnel in tunnels), sep="\n", flush=True)
        leads = {tunnel.remote for tunnel in tunnels}
        if leads != peers:
            raise DemoError(f"the tunnels of {name_of(pod)} lead to {sorted(leads)}, not to {sorted(peers)}")
    print()


def read_tunnels(pod: RunningPod) -> list[TunnelLine]:
    """In the pod's namespace, as `ip` tells it."""
    return read_tunnel_lines(pod.kernel.run("ip", "-details", "-oneline", "link", "show"))


def show_failover(world: World, egress: EgressUnderTest, client: RunningPod, *, serving: str) -> None:
    """Kill the router whose address was seen: the client gets the other one."""
    [victim] = [router for router in egress.routers() if router.addresses[4] == serving]
    [heir] = [router for router in egress.routers() if router is not victim]
    step(
        f"router {name_of(victim)} is killed, until the host sees the client as another one",
        lambda: fail_over(world, client, victim=victim, heir=heir),
    )
    print(f"\n    The internet host sees {heir.addresses[4]} now, which is router {name_of(heir)}.\n", flush=True)


def fail_over(world: World, client: RunningPod, *, victim: RunningPod, heir: RunningPod) -> None:
    """Return when the heir's address is seen. Raises AssertionError if that does not come to pass."""
    world.kubelet.kill(victim)
    world.kubelet.wait_until(
        lambda: ask_once(world, client, 4) == heir.addresses[4],
        what=f"the internet host sees {name_of(client)} as {heir.addresses[4]}",
    )


def take_down(made: ExitStack, egress: EgressUnderTest) -> None:
    """Delete what the scene has made; return when what Coil made of it is gone too."""
    made.close()
    wait_until(lambda: egress.service() is None, what=f"{egress.name} has no Service", timeout=PATIENCE, pause=PAUSE)


def router_names(egress: EgressUnderTest) -> dict[str, str]:
    """The router pods' names by address."""
    return {address: name_of(router) for router in egress.routers() for address in router.addresses.values()}


def name_of(pod: RunningPod) -> str:
    return pod.sandbox.pod.name


if __name__ == "__main__":
    sys.exit(main())

"""The demo's EIP gateway, on the stage of the tests: pods get an address, its node is lost, and nobody outside notices.

Every claim is checked against what others say: the server's sockets, a capture on the link, `ip` and `nft`. The first
that does not hold raises DemoError, or AssertionError where something was waited for in vain.
"""

import textwrap
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import yaml

from integration.demo.appearance import Appearance, find_mistakes
from integration.demo.eip_cast import CLIENT_NODE, GATEWAYS, LABELS, NODE_LABELS, PATIENCE, Cast, show_gateway
from integration.demo.eip_move import show_move
from integration.demo.gateway_row import read_gateway
from integration.demo.narration import DemoError, print_table, step
from integration.egress.conversation import ask
from integration.eip.pod import Pod
from integration.eip.world import Gateway, Policy, World
from integration.patience import wait_until, wait_until_clean

ADDRESSES = 4
"""Of each family in the gateway's range."""


def show(world: World) -> None:
    """The scene proper, on a stage with nothing on it."""
    untouched = world.states()
    with ExitStack() as made:
        gateway = step(
            f"{' and '.join(GATEWAYS)} get the label egress=true; an EgressGateway that selects them",
            lambda: make_gateway(world, made),
        )
        chosen, plain = step(
            f"two pods on {CLIENT_NODE}, which is no gateway; one of them with app=shop",
            lambda: [made.enter_context(world.pod(CLIENT_NODE, **labels)) for labels in (LABELS, {"app": "other"})],
        )
        policy = step(
            "an EgressGatewayPolicy for the pods with app=shop: it gets an address and a node",
            lambda: make_policy(world, gateway, made),
        )
        cast = Cast(world, gateway, policy, chosen, plain)
        print_manifests(cast)
        step("the server outside sees the chosen pod as the EIP, in both families", lambda: await_eips(cast))
        show_appearances(cast)
        show_gateway(cast)
        show_move(cast)
        step(
            f"the policy deleted: {CLIENT_NODE} speaks for the pod again, and no kernel holds anything of it",
            lambda: check_removal(cast, untouched),
        )


def make_gateway(world: World, made: ExitStack) -> Gateway:
    """Of a range of its own; returns when both nodes may carry addresses."""
    for name in GATEWAYS:
        world.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": NODE_LABELS}})
    eips = world.take_eips(ADDRESSES)
    ranges = {"policy": "Random", **{f"ipv{family}": [f"{all_[0]}-{all_[-1]}"] for family, all_ in eips.items()}}
    selector = {"selector": {"matchLabels": NODE_LABELS}}
    gateway = made.enter_context(world.gateway(ranges=ranges, nodeSelector=selector))

    def ready() -> bool:
        return {row.node for row in read_gateway(world.api.get(gateway.path)) if row.phase == "Ready"} == set(GATEWAYS)

    wait_until(ready, what=f"{' and '.join(GATEWAYS)} are ready as gateways")
    return gateway


def make_policy(world: World, gateway: Gateway, made: ExitStack) -> Policy:
    """Returns when it is placed."""
    policy = made.enter_context(world.policy(gateway, labels=LABELS))
    policy.wait_placed()
    return policy


def print_manifests(cast: Cast) -> None:
    """What a user writes, by the fields that matter here."""
    documents = [cast.world.api.get(path) for path in (cast.gateway.path, cast.policy.path)]
    fields = (("ranges", "nodeSelector"), ("egressGatewayName", "appliedTo"))
    shown = [render_manifest(document, names) for document, names in zip(documents, fields, strict=True)]
    print("", textwrap.indent("\n---\n".join(shown), "    "), "", sep="\n", flush=True)


def render_manifest(document: dict[str, Any], fields: Sequence[str]) -> str:
    """YAML of an object, with those fields of its spec."""
    metadata = {name: document["metadata"][name] for name in ("namespace", "name") if name in document["metadata"]}
    spec = {name: document["spec"][name] for name in fields}
    shown = {"kind": document["kind"], "metadata": metadata, "spec": spec}
    return str(yaml.safe_dump(shown, sort_keys=False)).rstrip()


def await_eips(cast: Cast) -> None:
    for eip in cast.eips.values():
        cast.world.await_seen(cast.chosen, eip)


def show_appearances(cast: Cast) -> None:
    """Both pods ask the server. Raises DemoError if it sees one as somebody else than it should."""
    node = cast.world.node(CLIENT_NODE)
    found = [
        look(cast, pod, family, expected)
        for pod, right in ((cast.chosen, cast.eips), (cast.plain, node.addresses))
        for family, expected in right.items()
    ]
    print()
    print_table(
        ("WHO ASKED", "ON NODE", "WITH ADDRESS", "THE SERVER SAW", "WHICH IS"),
        [(each.pod, each.node, each.own, each.seen, each.who(cast.names)) for each in found],
    )
    if mistakes := find_mistakes(found, cast.names):
        raise DemoError("\n".join(mistakes))


def look(cast: Cast, pod: Pod, family: int, expected: str) -> Appearance:
    """One question. Raises TimeoutError when there is no answer."""
    label = "app=shop" if pod is cast.chosen else "app=other"
    seen = ask(pod, cast.world.server, cast.world.server.addresses[family])
    return Appearance(
        pod=f"{pod.sandbox.pod.name}, {label}", node=pod.node, own=pod.addresses[family], seen=seen, expected=expected
    )


def check_removal(cast: Cast, untouched: dict[str, dict[str, object]]) -> None:
    """Raises AssertionError with what stays, if something does."""
    cast.policy.delete()
    for address in cast.world.node(CLIENT_NODE).addresses.values():
        cast.world.await_seen(cast.chosen, address)
    wait_until_clean(
        lambda: find_remains(untouched, cast.world.states()), after="the policy was deleted", timeout=PATIENCE
    )


def find_remains(before: dict[str, dict[str, object]], after: dict[str, dict[str, object]]) -> list[str]:
    """A line for everything in which a node is not as it was before."""
    return [
        f"{node}, {what}: {value} instead of {before[node][what]}"
        for node, state in after.items()
        for what, value in state.items()
        if value != before[node][what]
    ]

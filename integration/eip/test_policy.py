"""Which policy counts for a packet, and which pods a policy means."""

from contextlib import ExitStack

import pytest

from integration.egress.conversation import ask
from integration.eip.world import Gateway, World
from integration.patience import wait_until

pytestmark = [pytest.mark.kernel, pytest.mark.apiserver]

DRAWS = 12
"""Without the rule, none of them is another tenant's once in 4096 runs."""


def test_policies_of_several_pods_have_addresses_of_their_own(world: World, gateway: Gateway) -> None:
    with ExitStack() as stack:
        pods = {app: stack.enter_context(world.pod("n3", app=app)) for app in ("one", "two", "three")}
        policies = {app: stack.enter_context(world.policy(gateway, labels={"app": app})) for app in pods}
        for app, pod in pods.items():
            for family in (4, 6):
                world.await_seen(pod, policies[app].eip(family))
        assert len({policy.eip() for policy in policies.values()}) == 3
        # Average selection: no node has all of them.
        assert len({policy.wait_placed() for policy in policies.values()}) == 2


def test_a_narrow_destination_counts_by_priority(world: World, gateway: Gateway) -> None:
    labels = {"app": "narrow"}
    with ExitStack() as stack:
        pod = stack.enter_context(world.pod("n3", **labels))
        wide = stack.enter_context(world.policy(gateway, labels=labels))
        others = [f"{world.server.others[4]}/32", f"{world.server.others[6]}/128"]
        narrow = stack.enter_context(world.policy(gateway, labels=labels, destSubnet=others, priority=10))
        for family in (4, 6):
            world.await_seen(pod, wide.eip(family))
            world.await_seen(pod, narrow.eip(family), at=world.server.others)
        narrow.change(priority=-10)
        for family in (4, 6):
            world.await_seen(pod, wide.eip(family), at=world.server.others)
        narrow.change(priority=10)
        for family in (4, 6):
            world.await_seen(pod, narrow.eip(family), at=world.server.others)


def test_nested_destinations_agree_on_both_nodes(world: World, gateway: Gateway) -> None:
    labels = {"app": "nested"}
    everything = [str(world.network.ipv4), str(world.network.ipv6)]
    one = [f"{world.server.others[4]}/32", f"{world.server.others[6]}/128"]
    with ExitStack() as stack:
        pods = [stack.enter_context(world.pod(node, **labels)) for node in ("n1", "n2", "n3")]
        outer = stack.enter_context(world.policy(gateway, labels=labels, destSubnet=everything, priority=1))
        inner = stack.enter_context(world.policy(gateway, labels=labels, destSubnet=one, priority=2))
        for pod in pods:
            for family in (4, 6):
                world.await_seen(pod, inner.eip(family), at=world.server.others)
                world.await_seen(pod, outer.eip(family))
                world.await_seen(pod, outer.eip(family), at=world.server.third)


def test_only_the_named_destinations_go_through_the_gateway(world: World, gateway: Gateway) -> None:
    labels = {"app": "named"}
    with ExitStack() as stack:
        pod = stack.enter_context(world.pod("n3", **labels))
        policy = stack.enter_context(world.policy(gateway, labels=labels, destSubnet=[f"{world.server.others[4]}/32"]))
        world.await_seen(pod, policy.eip(), at=world.server.others)
        for family, address in world.node("n3").addresses.items():
            assert ask(pod, world.server, world.server.addresses[family]) == address


def test_the_gateways_own_address_serves_whoever_asks_for_it(world: World, gateway: Gateway) -> None:
    with ExitStack() as stack:
        pods = [stack.enter_context(world.pod(node, app="own")) for node in ("n1", "n2", "n3")]
        policy = stack.enter_context(world.policy(gateway, labels={"app": "own"}, egressIP={"useNodeIP": True}))
        carrier = world.node(policy.wait_placed())
        for pod in pods:
            for address in carrier.addresses.values():
                world.await_seen(pod, address)


def test_a_policy_may_name_subnets_of_pods(world: World, gateway: Gateway) -> None:
    node = world.node("n3")
    networks = [str(node.pod_network4), str(node.pod_network6)]
    with ExitStack() as stack:
        inside = stack.enter_context(world.pod("n3", app="subnet"))
        outside = stack.enter_context(world.pod("n1", app="subnet"))
        policy = stack.enter_context(world.policy(gateway, appliedTo={"podSubnet": networks}))
        for family in (4, 6):
            world.await_seen(inside, policy.eip(family))
        assert ask(outside, world.server, world.server.addresses[4]) == world.node("n1").addresses[4]


def test_the_same_labels_elsewhere_are_another_tenants(world: World, gateway: Gateway) -> None:
    labels = {"app": "twin"}
    with ExitStack() as stack:
        shop = stack.enter_context(world.pod("n3", namespace="shop", **labels))
        bank = stack.enter_context(world.pod("n3", namespace="bank", **labels))
        first = stack.enter_context(world.policy(gateway, labels=labels, namespace="shop"))
        world.await_seen(shop, first.eip())
        assert ask(bank, world.server, world.server.addresses[4]) == world.node("n3").addresses[4]
        second = stack.enter_context(world.policy(gateway, labels=labels, namespace="bank"))
        world.await_seen(bank, second.eip())
        assert first.eip() != second.eip()
        world.await_seen(shop, first.eip())


def test_tenants_share_an_address_only_where_the_gateway_says_so(world: World) -> None:
    """And where it does not say so any more, the older policy keeps it, and the other tenant's pods are held back.

    Of two that were created within a second, the first by name counts as the older one.
    """
    labels = {"app": "twin"}
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("n1", "n2", number=1))
        shop = stack.enter_context(world.pod("n3", namespace="shop", **labels))
        bank = stack.enter_context(world.pod("n3", namespace="bank", **labels))
        first = stack.enter_context(world.policy(gateway, labels=labels, namespace="bank"))
        world.await_seen(bank, first.eip())
        second = stack.enter_context(world.policy(gateway, labels=labels, namespace="shop"))
        for sharing, seen in ((None, None), ("Any", first.eip()), ("Namespace", None)):
            if sharing is not None:
                gateway.change(sharing=sharing)
            reason = "NoAddress" if seen is None else "Placed"
            wait_until(lambda reason=reason: second.ready_reason == reason, what=f"{reason} with {sharing}")  # type: ignore[misc]
            world.await_seen(shop, seen)
            world.await_seen(bank, first.eip())


def test_a_tenant_that_draws_again_and_again_gets_no_address_of_another(world: World) -> None:
    """`Random`, the default, draws from addresses in use as well: without the rule, half of the draws are the other
    tenant's.
    """
    with ExitStack() as stack:
        gateway = stack.enter_context(world.gateway("n1", "n2", number=4, allocation="Random"))
        taken: dict[int, set[str]] = {4: set(), 6: set()}
        for number in range(2):
            wanted = {f"ipv{version}": gateway.eips[version][number] for version in taken}
            policy = stack.enter_context(
                world.policy(gateway, labels={"app": f"own-{number}"}, namespace="bank", egressIP=wanted)
            )
            for version, addresses in taken.items():
                addresses.add(policy.eip(version))
        bank = stack.enter_context(world.pod("n3", namespace="bank", app="own-0"))
        drawn = [
            stack.enter_context(world.policy(gateway, labels={"app": f"drawn-{number}"}, namespace="shop"))
            for number in range(DRAWS)
        ]
        for version, others in taken.items():
            assert {policy.eip(version) for policy in drawn} <= set(gateway.eips[version]) - others
        shop = stack.enter_context(world.pod("n3", namespace="shop", app="drawn-0"))
        for version in taken:
            world.await_seen(bank, gateway.eips[version][0])
            world.await_seen(shop, drawn[0].eip(version))


def test_a_second_policy_on_an_address_that_is_placed_already(world: World, gateway: Gateway) -> None:
    with ExitStack() as stack:
        pods = {app: stack.enter_context(world.pod("n3", app=app)) for app in ("first", "second")}
        first = stack.enter_context(world.policy(gateway, labels={"app": "first"}))
        world.await_seen(pods["first"], first.eip())
        wanted = {"ipv4": first.eip(4), "ipv6": first.eip(6)}
        second = stack.enter_context(world.policy(gateway, labels={"app": "second"}, egressIP=wanted))
        for family in (4, 6):
            assert second.eip(family) == first.eip(family)
            world.await_seen(pods["second"], first.eip(family))
        assert second.wait_placed() == first.wait_placed()
        # What the first one leaves behind is the second one's.
        first.delete()
        world.await_seen(pods["first"], world.node("n3").addresses[4])
        world.await_seen(pods["second"], wanted["ipv4"])


def test_a_policy_without_a_gateway_uses_its_namespaces(world: World, gateway: Gateway) -> None:
    label = "egressgateway.spidernet.io/default"
    world.api.patch("/api/v1/namespaces/bank", {"metadata": {"labels": {label: gateway.name}}})
    try:
        with (
            world.pod("n3", namespace="bank", app="default") as pod,
            world.policy("", labels={"app": "default"}, namespace="bank") as policy,
        ):
            world.await_seen(pod, policy.eip())
            assert policy.eip() in gateway.eips[4]
    finally:
        world.api.patch("/api/v1/namespaces/bank", {"metadata": {"labels": {label: None}}})


def test_a_policy_before_its_gateway_lets_nothing_out_and_is_served_when_the_gateway_comes(world: World) -> None:
    """Manifests may be applied in any order. Whether the gateway fails open is not known before it is there."""
    name = "gw-to-come"
    # While policies use it, a gateway stays: it goes last.
    with (
        ExitStack() as last,
        world.pod("n3", app="early") as pod,
        world.policy(name, labels={"app": "early"}) as policy,
    ):
        wait_until(lambda: policy.ready_reason == "GatewayNotFound", what="the policy's condition")
        world.await_seen(pod, None)
        last.enter_context(world.gateway("n1", "n2", name=name))
        for family in world.families:
            world.await_seen(pod, policy.eip(family))


def test_policies_add_elements_and_no_rules(world: World, gateway: Gateway) -> None:
    with ExitStack() as stack:
        pod = stack.enter_context(world.pod("n3", app="few"))
        policy = stack.enter_context(world.policy(gateway, labels={"app": "few"}))
        world.await_seen(pod, policy.eip())
        before = [node.rule_count() for node in world.nodes]
        for number in range(3):
            labels = {"app": f"more{number}"}
            more = stack.enter_context(world.pod("n3", **labels))
            another = stack.enter_context(
                world.policy(gateway, labels=labels, destSubnet=[f"{world.server.others[4]}/32"], priority=number)
            )
            world.await_seen(more, another.eip(), at=world.server.others)
        assert [node.rule_count() for node in world.nodes] == before
        assert min(before) > 0
        wait_until(lambda: len(world.node("n3").elements()) > 2, what="elements")

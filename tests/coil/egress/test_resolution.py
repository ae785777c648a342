"""What annotations, Egresses and Services come to, right and wrong ones beside each other."""

from collections.abc import Collection
from dataclasses import replace
from ipaddress import ip_address, ip_network
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.builtin import Namespace, Service, ServiceSpec
from coil.crd.egress import Egress, EgressSpec
from coil.crd.meta import LabelSelector, ObjectMeta
from coil.egress.client_pod import EgressRef
from coil.egress.gateway import Gateway, Replies, SourcePort, TunnelPolicy
from coil.egress.resolution import ClientOptions, EgressView, Resolution, resolve_client
from coil.egress.resolution import ProblemReason as Reason
from coil.kernel.family import Family

PREFIX = "egress.coil.cybozu.com/"
V4 = ip_address("10.1.0.7")
V6 = ip_address("fd01::7")
OPTIONS = ClientOptions(policy=TunnelPolicy(port=5556), replies=Replies.WHERE_THEY_CAME_FROM)


def egress(name: str, *destinations: str, auto: bool = False) -> Egress:
    namespace, _, short = name.partition("/")
    return Egress(
        metadata=ObjectMeta(namespace=namespace, name=short),
        spec=EgressSpec(destinations=destinations, fou_source_port_auto=auto),
    )


def service(name: str, *addresses: str) -> Service:
    namespace, _, short = name.partition("/")
    spec = ServiceSpec(cluster_ip=addresses[0] if addresses else "", cluster_ips=addresses)
    return Service(metadata=ObjectMeta(namespace=namespace, name=short), spec=spec)


def resolve(
    annotations: dict[str, str],
    *objects: Egress | Service,
    addresses: tuple[str, ...] = ("10.1.0.7", "fd01::7"),
    options: ClientOptions = OPTIONS,
    known: Resolution | None = None,
    namespaces: Collection[Namespace] = (),
) -> Resolution:
    egresses = {str(_reference(found)): found for found in objects if isinstance(found, Egress)}
    services = {str(_reference(found)): found for found in objects if isinstance(found, Service)}
    labels = {namespace.metadata.name: namespace for namespace in namespaces}
    view = EgressView(
        egress=lambda ref: egresses.get(str(ref)), service=lambda ref: services.get(str(ref)), namespace=labels.get
    )
    named = {PREFIX + namespace: names for namespace, names in annotations.items()}
    return resolve_client(
        named,
        map(ip_address, addresses),
        view,
        options,
        namespace="apps",
        known=known.destinations if known is not None else None,
    )


def _reference(found: Egress | Service) -> EgressRef:
    return EgressRef(found.metadata.namespace, found.metadata.name)


def reasons(resolution: Resolution) -> list[Reason]:
    return [problem.reason for problem in resolution.problems]


def blocked(resolution: Resolution) -> list[str]:
    return list(map(str, resolution.spec.blocked))


def routes(resolution: Resolution) -> dict[str, list[str]]:
    return {gateway.name: list(map(str, gateway.destinations)) for gateway in resolution.spec.gateways}


WORLD = egress("net/world", "0.0.0.0/0", "::/0")
WORLD_SERVICE = service("net/world", "10.96.0.9", "fd96::9")


def test_one_egress() -> None:
    found = resolve({"net": "world"}, WORLD, WORLD_SERVICE)
    assert found.problems == ()
    assert found.references == (EgressRef("net", "world"),)
    assert found.spec.addresses == (V4, V6)
    assert (found.spec.policy, found.spec.replies) == (OPTIONS.policy, OPTIONS.replies)
    assert found.spec.gateways == (
        Gateway(
            name="net/world",
            addresses=(ip_address("10.96.0.9"), ip_address("fd96::9")),
            destinations=(ip_network("0.0.0.0/0"), ip_network("::/0")),
            source_port=SourcePort.FIXED,
        ),
    )


def test_a_pod_that_names_none() -> None:
    found = resolve({}, WORLD, WORLD_SERVICE)
    assert (found.spec.gateways, found.references, found.problems) == ((), (), ())


def test_the_source_port_may_be_the_kernels() -> None:
    (gateway,) = resolve({"net": "world"}, egress("net/world", "8.0.0.0/8", auto=True), WORLD_SERVICE).spec.gateways
    assert gateway.source_port is SourcePort.AUTO


def test_several_of_several_namespaces() -> None:
    objects: list[Egress | Service] = [
        egress("a/x", "8.8.0.0/16"),
        egress("a-b/x", "8.9.0.0/16"),
        egress("a/y", "9.0.0.0/8"),
        *(service(name, f"10.96.0.{number}") for number, name in enumerate(("a/x", "a-b/x", "a/y"), 1)),
    ]
    found = resolve({"a-b": "x", "a": "y, x"}, *objects)
    assert found.problems == ()
    # By namespace, then name: not as the joined names are sorted.
    assert list(routes(found)) == ["a/x", "a/y", "a-b/x"]


APPS_ONLY = msgspec.structs.replace(
    egress("net/chosen", "9.0.0.0/8"),
    spec=EgressSpec(destinations=("9.0.0.0/8",), allowed_namespaces=LabelSelector(match_labels={"egress": "yes"})),
)


@pytest.mark.parametrize("labels", [None, {}, {"egress": "no"}])
def test_who_is_not_allowed_reaches_nothing_through_it_nor_past_it(labels: dict[str, str] | None) -> None:
    namespaces = [] if labels is None else [Namespace(metadata=ObjectMeta(name="apps", labels=labels))]
    objects = (WORLD, WORLD_SERVICE, APPS_ONLY, service("net/chosen", "10.96.0.3"))
    found = resolve({"net": "world, chosen"}, *objects, namespaces=namespaces)
    assert reasons(found) == [Reason.NOT_ALLOWED]
    assert "apps" in found.problems[0].message
    assert found.problems[0].unserved
    assert routes(found) == {"net/world": ["0.0.0.0/0", "::/0"]}
    assert found.spec.blocked == (ip_network("9.0.0.0/8"),)
    assert found.granted == {EgressRef("net", "world")}
    assert len(found.references) == 2


def test_who_is_allowed_is_a_client() -> None:
    apps = Namespace(metadata=ObjectMeta(name="apps", labels={"egress": "yes"}))
    found = resolve({"net": "chosen"}, APPS_ONLY, service("net/chosen", "10.96.0.3"), namespaces=[apps])
    assert (found.problems, routes(found)) == ((), {"net/chosen": ["9.0.0.0/8"]})
    assert found.granted == set(found.references)


@pytest.mark.parametrize(
    ("annotations", "objects", "reason", "words"),
    [
        ({"Net": "world"}, (), Reason.ANNOTATION, "Net"),
        ({"net": "no/name"}, (), Reason.ANNOTATION, "no/name"),
        ({"net": "mars"}, (), Reason.NOT_FOUND, "net/mars"),
        ({"away": "world"}, (), Reason.NOT_FOUND, "away/world"),
        ({"net": "bad"}, (egress("net/bad", "8.8"), service("net/bad", "10.96.0.3")), Reason.DESTINATION, "net/bad"),
        ({"net": "bare"}, (egress("net/bare", "9.0.0.0/8"),), Reason.NO_SERVICE, "net/bare"),
        ({"net": "head"}, (egress("net/head", "9.0.0.0/8"), service("net/head", "None")), Reason.NO_ADDRESS, "IPv4"),
        ({"net": "head"}, (egress("net/head", "9.0.0.0/8"), service("net/head")), Reason.NO_ADDRESS, "net/head"),
        ({"net": "late"}, (egress("net/late", "::/0"), service("net/late", "10.96.0.4")), Reason.NO_ADDRESS, "IPv6"),
        ({"zoo": "z"}, (egress("zoo/z", "0.0.0.0/0"), service("zoo/z", "10.96.0.5")), Reason.CONFLICT, "net/world"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_and_takes_nothing_else_with_it(
    annotations: dict[str, str], objects: tuple[Egress | Service, ...], reason: Reason, words: str
) -> None:
    names = dict(annotations)
    names["net"] = ", ".join(filter(None, ("world", names.get("net", ""))))
    found = resolve(names, WORLD, WORLD_SERVICE, *objects)
    assert reasons(found) == [reason]
    assert words in found.problems[0].message
    assert routes(found) == {"net/world": ["0.0.0.0/0", "::/0"]}


def test_a_destination_that_is_no_network_leaves_the_others_of_its_egress() -> None:
    found = resolve({"net": "x"}, egress("net/x", "8.0.0.0/8", "nonsense", "9.0.0.0/8"), service("net/x", "10.96.0.2"))
    assert reasons(found) == [Reason.DESTINATION]
    assert routes(found) == {"net/x": ["8.0.0.0/8", "9.0.0.0/8"]}


def test_host_bits_are_cleared() -> None:
    """As Go's net.ParseCIDR does it, so there are such manifests."""
    found = resolve({"net": "x"}, egress("net/x", "8.1.2.3/8", "8.0.0.0/8"), service("net/x", "10.96.0.2"))
    assert (found.problems, routes(found)) == ((), {"net/x": ["8.0.0.0/8"]})


def test_a_family_that_the_pod_lacks_is_no_problem() -> None:
    found = resolve({"net": "world"}, WORLD, service("net/world", "10.96.0.9"), addresses=("10.1.0.7",))
    assert found.problems == ()
    assert routes(found) == {"net/world": ["0.0.0.0/0"]}
    assert [*map(str, found.spec.gateways[0].addresses)] == ["10.96.0.9"]


def test_a_gateway_keeps_what_an_earlier_one_does_not_have() -> None:
    egresses = egress("a/x", "8.0.0.0/8"), egress("b/x", "8.0.0.0/8", "8.8.0.0/16")
    found = resolve({"b": "x", "a": "x"}, *egresses, service("a/x", "10.96.0.1"), service("b/x", "10.96.0.2"))
    assert routes(found) == {"a/x": ["8.0.0.0/8"], "b/x": ["8.8.0.0/16"]}
    assert reasons(found) == [Reason.CONFLICT]


def test_an_api_server_without_dual_stack_tells_one_address() -> None:
    alone = Service(metadata=WORLD_SERVICE.metadata, spec=ServiceSpec(cluster_ip="10.96.0.9"))
    assert routes(resolve({"net": "world"}, WORLD, alone, addresses=("10.1.0.7",))) == {"net/world": ["0.0.0.0/0"]}


EVERYTHING = ["0.0.0.0/0", "::/0"]
BARE = egress("net/bare", "9.0.0.0/8", "2001:db8::/32")


@pytest.mark.parametrize(
    ("annotations", "objects", "expected"),
    [
        ({"net": "mars"}, (), EVERYTHING),
        ({"Net": "world"}, (WORLD, WORLD_SERVICE), EVERYTHING),
        ({"net": ""}, (), EVERYTHING),
        ({"net": "bare"}, (BARE,), ["9.0.0.0/8", "2001:db8::/32"]),
        ({"net": "bare"}, (BARE, service("net/bare", "None")), ["9.0.0.0/8", "2001:db8::/32"]),
        ({"net": "bare"}, (BARE, service("net/bare", "10.96.0.3")), ["2001:db8::/32"]),
        ({"net": "bad"}, (egress("net/bad", "8.0.0.0/8", "x"), service("net/bad", "10.96.0.3", "fd96::3")), EVERYTHING),
    ],
    ids=["no Egress", "no namespace", "no name", "no Service", "headless", "one family", "destination"],
)
def test_what_is_not_served_is_blocked(
    annotations: dict[str, str], objects: tuple[Egress | Service, ...], expected: list[str]
) -> None:
    found = resolve(annotations, *objects)
    assert blocked(found) == expected
    assert found.spec.block_unclaimed == (expected == EVERYTHING)
    assert any(problem.unserved for problem in found.problems)
    # Of a pod with one family, and of one that fails open.
    assert blocked(resolve(annotations, *objects, addresses=("10.1.0.7",))) == [
        text for text in expected if ":" not in text
    ]
    opened = resolve(annotations, *objects, options=replace(OPTIONS, fail_open=True))
    assert (opened.spec.blocked, opened.spec.block_unclaimed, opened.spec.fail_open) == ((), False, True)
    assert opened.problems == found.problems


def test_what_a_lost_egress_was_for_is_blocked_and_nothing_else() -> None:
    whole = resolve({"net": "bare, world"}, BARE, service("net/bare", "10.96.0.3", "fd96::3"), WORLD, WORLD_SERVICE)
    lost = resolve({"net": "bare, world"}, WORLD, WORLD_SERVICE, known=whole)
    assert reasons(lost) == [Reason.NOT_FOUND]
    assert blocked(lost) == ["9.0.0.0/8", "2001:db8::/32"]
    assert routes(lost) == {"net/world": EVERYTHING}
    assert not lost.spec.block_unclaimed
    # As long as it is away, whoever looks; and not beyond the annotation.
    assert resolve({"net": "bare, world"}, WORLD, WORLD_SERVICE, known=lost) == lost
    without = resolve({"net": "world"}, WORLD, WORLD_SERVICE, known=lost)
    assert (blocked(without), set(without.destinations)) == ([], {EgressRef("net", "world")})


def test_an_egress_that_becomes_invalid_still_blocks_what_it_was_for() -> None:
    whole = resolve({"net": "bare"}, BARE, service("net/bare", "10.96.0.3", "fd96::3"))
    spoilt = egress("net/bare", "9.0.0.0/8", "nonsense")
    found = resolve({"net": "bare"}, spoilt, service("net/bare", "10.96.0.3", "fd96::3"), known=whole)
    assert (routes(found), blocked(found)) == ({"net/bare": ["9.0.0.0/8"]}, ["2001:db8::/32"])


def test_another_egress_of_the_same_destination_serves_what_a_missing_one_may_be_for() -> None:
    found = resolve({"net": "mars, world"}, WORLD, WORLD_SERVICE)
    assert (routes(found), blocked(found)) == ({"net/world": EVERYTHING}, [])
    assert found.spec.block_unclaimed


@pytest.mark.parametrize("names", ["world, world", "world"])
def test_what_is_served_twice_stops_no_pod(names: str) -> None:
    again = egress("zoo/z", "0.0.0.0/0"), service("zoo/z", "10.96.0.5")
    found = resolve({"net": names, "zoo": "z"}, WORLD, WORLD_SERVICE, *again)
    assert found.problems
    assert not any(problem.unserved for problem in found.problems)
    assert blocked(found) == []


def test_a_client_without_a_known_address_is_not_served() -> None:
    found = resolve({"net": "world"}, WORLD, WORLD_SERVICE, addresses=())
    assert [(problem.reason, problem.unserved) for problem in found.problems] == [(Reason.UNUSABLE, True)]
    assert resolve({}, addresses=()).problems == ()


NAMES = st.sampled_from(["a/x", "a/y", "b/x", "c/z"])
DESTINATIONS = st.sampled_from(["0.0.0.0/0", "8.0.0.0/8", "8.8.0.0/16", "::/0", "fd00::/8", "nonsense", "8.8.8.8/8"])
SERVICES = st.lists(st.sampled_from(["10.96.0.1", "10.96.0.2", "fd96::1", "None", ""]), max_size=3)
CLUSTERS = st.tuples(
    st.dictionaries(NAMES, st.lists(DESTINATIONS, max_size=5)), st.dictionaries(NAMES, SERVICES), st.randoms()
)


@given(CLUSTERS, st.lists(NAMES, unique=True), st.sets(st.sampled_from(["10.1.0.7", "fd01::7"])))
def test_of_any_cluster(
    cluster: tuple[dict[str, list[str]], dict[str, list[str]], Random],
    named: list[str],
    own: set[str],
) -> None:
    egresses, services, rng = cluster
    objects: list[Egress | Service] = [egress(name, *destinations) for name, destinations in egresses.items()]
    objects += [service(name, *addresses) for name, addresses in services.items()]
    annotations: dict[str, str] = {}
    for name in named:
        namespace, _, short = name.partition("/")
        annotations[namespace] = ",".join(filter(None, (annotations.get(namespace, ""), short)))
    found = resolve(annotations, *objects, addresses=tuple(own))

    families = {Family.of(ip_address(address)) for address in own}
    taken = [destination for gateway in found.spec.gateways for destination in gateway.destinations]
    assert len(taken) == len(set(taken))
    for gateway in found.spec.gateways:
        assert gateway.destinations
        assert {Family.of(network) for network in gateway.destinations} == set(map(Family.of, gateway.addresses))
        assert set(map(Family.of, gateway.addresses)) <= families
        assert len(gateway.addresses) == len(set(map(Family.of, gateway.addresses)))
    # What the pod asks for is served, or it is blocked, and then a problem says so.
    unserved = [problem for problem in found.problems if problem.unserved]
    assert not (set(found.spec.blocked) & set(taken))
    assert not found.spec.blocks or unserved
    for name in named:
        for text in egresses.get(name, ["0.0.0.0/0", "::/0"]):
            if text != "nonsense" and Family.of(network := ip_network(text, strict=False)) in families:
                assert network in taken or network in found.spec.blocked
    # Whatever exists and is named is either served or complained of.
    for name in named:
        whole = name in egresses and services.get(name) and families
        if (
            whole
            and name not in {gateway.name for gateway in found.spec.gateways}
            and any(
                Family.of(ip_network(text, strict=False)) in families for text in egresses[name] if text != "nonsense"
            )
        ):
            assert any(name in problem.message for problem in found.problems)

    shuffled = dict(egresses)
    for destinations in shuffled.values():
        rng.shuffle(destinations)
    again = [egress(name, *destinations) for name, destinations in shuffled.items()]
    rest = [found for found in objects if isinstance(found, Service)]
    other = resolve(dict(reversed(annotations.items())), *rest, *again, addresses=tuple(sorted(own, reverse=True)))
    assert other.spec == found.spec
    assert sorted(problem.message for problem in other.problems) == sorted(p.message for p in found.problems)
    assert replace(found.spec, gateways=()).addresses == tuple(sorted(map(ip_address, own), key=lambda a: a.version))

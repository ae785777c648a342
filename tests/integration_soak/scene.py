"""A small world in which everything agrees, for tests to spoil: one node, a dual pool, a block, a pod."""

from dataclasses import replace
from ipaddress import ip_network

from integration.soak.observation import Block, Kernel, Ledger, Lookup, Objects, Observation, Pod, Pool, Veth

POD = Pod(
    node="node-0",
    container_id="c0ffee",
    pool="default",
    host_link="veth1",
    addresses=frozenset({"10.0.0.5", "fd00::5"}),
)
POOL = Pool(
    name="default",
    uid="pool-uid",
    bits=2,
    subnets=(ip_network("10.0.0.0/28"), ip_network("fd00::/124")),
    status={"blocks": {"total": 4, "used": 1}, "addresses": {"total": 16, "used": 4}},
)
BLOCK = Block(
    name="default-1",
    pool="default",
    node="node-0",
    request="request-1",
    owner="pool-uid",
    networks=(ip_network("10.0.0.4/30"), ip_network("fd00::4/126")),
)
OBJECTS = Objects(pools=(POOL,), blocks=(BLOCK,), nodes=frozenset({"node-0", "node-1"}))
RULES = (Lookup(4, 0, "local"), Lookup(4, 2000, "116"), Lookup(6, 2000, "116"))
KERNEL = Kernel(
    veths=(Veth("veth1", POD.alias),),
    pod_routes=(("10.0.0.5/32", "veth1"), ("fd00::5/128", "veth1")),
    exports=("10.0.0.4/30", "fd00::4/126"),
    lookups=RULES,
)
LEDGER = Ledger(holders={"c0ffee": POD.addresses}, blocks=frozenset({"default-1"}))
WORLD = Observation(
    objects=OBJECTS,
    kernels={"node-0": KERNEL, "node-1": Kernel(lookups=RULES)},
    ledgers={"node-0": LEDGER},
)


def with_objects(**changes: object) -> Observation:
    """The world with other objects."""
    return replace(WORLD, objects=replace(OBJECTS, **changes))  # type: ignore[arg-type]


def with_block(**changes: object) -> Observation:
    """The world with the block changed."""
    return with_objects(blocks=(replace(BLOCK, **changes),))  # type: ignore[arg-type]


def with_kernel(**changes: object) -> Observation:
    """The world with the kernel of the pod's node changed."""
    return replace(WORLD, kernels={**WORLD.kernels, "node-0": replace(KERNEL, **changes)})  # type: ignore[arg-type]

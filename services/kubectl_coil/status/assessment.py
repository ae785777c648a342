"""What a snapshot means: the document of `kubectl coil status` with its findings. Pure.

An error is something that does not work, or of which it is unknown whether it works; a warning works for now. Each
finding says what to do, in the words of docs/troubleshooting.md.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from coil.crd.address_block import AddressBlock
from coil.crd.address_pool import AddressPool, PoolConditionType, PoolFill
from coil.crd.block_request import BlockRequest, Pending
from coil.crd.builtin import Event, ObjectReference
from coil.crd.egress import Egress
from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_gateway_policy import EgressGatewayPolicy
from coil.crd.egress_tunnel import TunnelPhase
from coil.crd.meta import Condition
from coil.crd.names import APP_NAME, COMPONENT_EGRESS, LABEL_APP_COMPONENT, LABEL_APP_INSTANCE, LABEL_APP_NAME
from coil.crd.node_condition import FAULTS, LIMITS
from coil.eip.gateway_status import EXHAUSTED, READY
from coil.kube.lease_lock import Lease
from coil.page.cluster_document import UseCounts
from kubectl_coil.status import document as page
from kubectl_coil.status.document import Finding, Severity
from kubectl_coil.status.resources import NodeWithConditions, Workload
from kubectl_coil.status.snapshot import ELECTIONS, Part, Snapshot

WARNINGS: Final = 10
"""How many warning Events are told, the latest."""
WARNING_AGE: Final = timedelta(hours=1)
REQUEST_PATIENCE: Final = timedelta(seconds=30)
"""How long a BlockRequest may be unanswered: a controller that works takes less than a second."""
SKEW: Final = timedelta(seconds=15)
"""By how much the clocks of a leader and of the API server may differ."""
CACHE_AGE: Final = timedelta(minutes=6)
"""A watch usually hears a bookmark each minute, and is begun anew after 330 s of silence (`coil.kube.transport`)."""
CERTIFICATE_LEFT: Final = timedelta(days=1)
"""Certificates are renewed long before."""
NAMED: Final = 3
"""How many objects a finding names."""

T = TypeVar("T")
D = TypeVar("D")

_KINDS = "apply the chart's kinds: kubectl apply --server-side -f charts/coil/crds"
_CERTIFICATE = "see docs/troubleshooting.md, Certificates"
_VIEWER = "bind the ClusterRole coil-viewer to the user of this kubeconfig"
_BUSY = "try again: the API server was busy, or not ready"


def assess(snapshot: Snapshot) -> page.StatusDocument:
    """The whole document; the same snapshot, the same document."""
    findings = [
        *_judge_parts(snapshot),
        *_judge_programs(snapshot),
        *_judge_vitals(snapshot),
        *_judge_nodes(snapshot.nodes.known()),
        *_judge_pools(snapshot.pools.known()),
        *_judge_blocks(snapshot),
        *_judge_requests(snapshot.requests.known(), snapshot.at),
        *_judge_egresses(snapshot),
        *_judge_policies(snapshot.policies.known()),
        *_judge_gateways(snapshot.gateways.known()),
    ]
    findings.sort(key=lambda finding: finding.severity is not Severity.ERROR)
    failed = any(finding.severity is Severity.ERROR for finding in findings)
    nodes = None if snapshot.nodes.items is None else len(snapshot.nodes.items)
    blocks = snapshot.blocks.known()
    return page.StatusDocument(
        at=snapshot.at,
        verdict=page.Verdict.DEGRADED if failed else page.Verdict.FINE,
        findings=tuple(findings),
        components=_each(snapshot.programs, lambda program: _describe_program(program, snapshot)),
        nodes=_describe_nodes(snapshot),
        pools=_each(snapshot.pools, lambda pool: _describe_pool(pool, blocks, nodes=nodes)),
        egresses=_each(snapshot.egresses, lambda egress: _describe_egress(egress, snapshot)),
        gateways=_each(snapshot.gateways, lambda gateway: _describe_gateway(gateway, snapshot.policies.known())),
        warnings=_describe_warnings(snapshot),
    )


def _each(part: Part[T], describe: Callable[[T], D]) -> tuple[D, ...] | None:
    return None if part.items is None else tuple(describe(item) for item in part.items)


# --- what is wrong


def _error(subject: str, message: str, remedy: str) -> Finding:
    return Finding(severity=Severity.ERROR, subject=subject, message=message, remedy=remedy)


def _warning(subject: str, message: str, remedy: str) -> Finding:
    return Finding(severity=Severity.WARNING, subject=subject, message=message, remedy=remedy)


def _judge_parts(snapshot: Snapshot) -> Iterator[Finding]:
    for part in snapshot.parts():
        if part.error:
            yield _error(part.what, f"could not be read: {part.error}", _VIEWER if part.forbidden else _BUSY)
    if snapshot.programs.items == []:
        yield _error(
            "cluster",
            "no program of Coil is installed here",
            "install the chart, or choose another cluster with --context",
        )
    installed = {program.metadata.name for program in snapshot.programs.known()}
    for program, parts in (
        ("coil-ipam-controller", (snapshot.pools, snapshot.blocks, snapshot.requests)),
        ("coil-egress-controller", (snapshot.egresses,)),
    ):
        for part in parts if program in installed else ():
            if part.items is None and not part.error:
                yield _error(part.what, f"the API server does not serve them, and {program} needs them", _KINDS)


def _judge_programs(snapshot: Snapshot) -> Iterator[Finding]:
    leases = {lease.metadata.name: lease for lease in snapshot.leases.known()}
    versions: dict[str, list[str]] = {}
    for program in snapshot.programs.known():
        name, counts = f"{program.kind} {program.metadata.name}", program.pods
        look = _list_pods(program.metadata.namespace, component=program.metadata.labels.get(LABEL_APP_COMPONENT, ""))
        if counts.ready < counts.desired:
            missing = counts.desired - counts.ready
            yield _error(name, f"{missing} of {counts.desired} pods are not ready", f"look for them: {look}")
        if program.status.observed_generation < program.metadata.generation:
            yield _warning(name, "Kubernetes has not yet acted on its last change", "wait, or look at its controller")
        elif counts.updated < counts.desired:
            old = counts.desired - counts.updated
            yield _warning(name, f"{old} of {counts.desired} pods are of an older template", f"wait, or see {look}")
        if program.metadata.name in ELECTIONS and not snapshot.leases.error:
            yield from _judge_lease(program, leases.get(program.metadata.name), snapshot.at)
        if counts.desired:
            versions.setdefault(program.spec.template.version, []).append(program.metadata.name)
    if len(versions) > 1:
        each = "; ".join(f"{version}: {', '.join(names)}" for version, names in sorted(versions.items()))
        yield _warning("cluster", f"the programs are of different versions: {each}", "finish the upgrade")


def _judge_lease(program: Workload, lease: Lease | None, now: datetime) -> Iterator[Finding]:
    remedy = f"see the program's log: kubectl -n {program.metadata.namespace} logs deployment/{program.metadata.name}"
    if not program.pods.desired:
        return
    name = f"{program.kind} {program.metadata.name}"
    if lease is None or not lease.spec.holder_identity:
        yield _error(name, "no replica leads", remedy)
        return
    renewed = _parse_time(lease.spec.renew_time)
    bound = timedelta(seconds=lease.spec.lease_duration_seconds) + SKEW
    if renewed is None or now - renewed > bound:
        ago = "never" if renewed is None else f"{(now - renewed).total_seconds():.0f} s ago"
        yield _error(name, f"{lease.spec.holder_identity} leads, and last renewed its lease {ago}", remedy)


def _judge_vitals(snapshot: Snapshot) -> Iterator[Finding]:
    silent, blocked = [], []
    for each in snapshot.vitals.known():
        name = f"Pod {each.program.key}"
        if each.error:
            silent.append(f"{each.program.key} ({each.error})")
        if each.cache_age is not None and each.cache_age > CACHE_AGE:
            ago = f"{each.cache_age.total_seconds():.0f} s"
            yield _error(name, f"one of its caches has not heard the API server for {ago}", "see its log")
        if each.certificate_end is not None and each.certificate_end < snapshot.at + CERTIFICATE_LEFT:
            judge = _error if each.certificate_end < snapshot.at else _warning
            yield judge(name, f"its webhook's certificate ends at {each.certificate_end:%F %T} UTC", _CERTIFICATE)
        if each.blocked_pods:
            blocked.append(f"{each.blocked_pods} on {each.program.spec.node_name}")
    if silent:
        yield _warning("pods", f"these could not be asked: {_name_some(silent)}", "see whether their nodes answer")
    if blocked:
        yield _error(
            "pods with an Egress",
            f"nobody serves it: {_name_some(blocked)}",
            "see the Events of the pods, and docs/troubleshooting.md, Egress NAT",
        )


def _judge_nodes(nodes: Sequence[NodeWithConditions]) -> Iterator[Finding]:
    faults: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        for condition in node.status.conditions:
            if FAULTS.get(condition.type) == condition.status:
                fault = (condition.type, condition.message or condition.reason)
                faults.setdefault(fault, []).append(node.metadata.name)
    for (kind, message), names in faults.items():
        judge = _warning if kind in LIMITS else _error
        subject = f"Node {names[0]}" if len(names) == 1 else f"Nodes {_name_some(names)}"
        yield judge(subject, f"{kind}: {message}", "see docs/troubleshooting.md for this condition")
    if silent := [node.metadata.name for node in nodes if node.silent]:
        yield _warning("nodes", f"these are not Ready, and are not asked: {_name_some(silent)}", "see their kubelets")


def _judge_pools(pools: Sequence[AddressPool]) -> Iterator[Finding]:
    for pool in pools:
        name = f"AddressPool {pool.name}"
        ready, full, occupied, degraded = (
            pool.status.condition(kind)
            for kind in (
                PoolConditionType.READY,
                PoolConditionType.FULL,
                PoolConditionType.OCCUPIED,
                PoolConditionType.DEGRADED,
            )
        )
        if ready is None or pool.status.observed_generation < pool.metadata.generation:
            yield _error(name, "coil-ipam-controller has not judged it", "see the controller's log")
        elif ready.status != "True":
            yield _error(name, f"it gives no blocks: {ready.message or ready.reason}", "mend the pool's subnets")
        if full is not None and full.reason == PoolFill.EXHAUSTED:
            yield _error(name, "it has no block left", "append a subnet to it")
        if full is not None and full.reason == PoolFill.NEARLY_FULL:
            yield _warning(name, f"it is nearly full: {full.message}", "append a subnet to it")
        if occupied is not None and occupied.status == "True":
            yield _error(name, occupied.message, "take addresses of nodes and Services out of the pool")
        if degraded is not None and degraded.status == "True":
            yield _warning(name, degraded.message, "move its pods to a pool that keeps the rules, and delete it")


def _judge_blocks(snapshot: Snapshot) -> Iterator[Finding]:
    if snapshot.nodes.items is None or snapshot.pools.items is None:
        return
    nodes = {node.metadata.name for node in snapshot.nodes.items}
    pools = {pool.name for pool in snapshot.pools.items}
    # Of other programs are those that are reserved, until the migration is done.
    blocks = [block for block in snapshot.blocks.known() if not block.reserved]
    if orphaned := [block.name for block in blocks if block.node not in nodes]:
        yield _warning(
            "AddressBlocks",
            f"{_name_some(orphaned)}: there is no such node",
            "wait for the controller to take them back; if they stay, see its log",
        )
    if strays := [block.name for block in blocks if block.pool not in pools]:
        yield _error(
            "AddressBlocks",
            f"{_name_some(strays)}: there is no such pool",
            "find out who removed the pool's finalizer, and create the pool again as it was",
        )


def _judge_requests(requests: Sequence[BlockRequest], now: datetime) -> Iterator[Finding]:
    waiting = [
        request
        for request in requests
        if isinstance(request.outcome(), Pending)
        and request.metadata.creation_timestamp is not None
        and now - request.metadata.creation_timestamp > REQUEST_PATIENCE
    ]
    if waiting:
        nodes = sorted({str(request.spec.node_name) for request in waiting})
        yield _error(
            "BlockRequests",
            f"{len(waiting)} are unanswered for more than {REQUEST_PATIENCE.seconds} s; nodes: {_name_some(nodes)}",
            "see whether coil-ipam-controller leads, and its log",
        )


def _judge_egresses(snapshot: Snapshot) -> Iterator[Finding]:
    for egress in snapshot.egresses.known():
        counts = _describe_egress(egress, snapshot)
        if counts.ready < counts.desired and not snapshot.routers.error:
            outcome = "its clients reach nothing" if not counts.ready else f"{counts.ready} serve its clients"
            yield _error(
                f"Egress {counts.namespace}/{counts.name}",
                f"{counts.desired - counts.ready} of {counts.desired} router pods are not ready: {outcome}",
                f"look for them: {_list_pods(counts.namespace, component=COMPONENT_EGRESS, instance=counts.name)}",
            )


def _judge_policies(policies: Sequence[EgressGatewayPolicy]) -> Iterator[Finding]:
    by_reason: dict[str, list[str]] = {}
    for policy in policies:
        ready = _condition(policy.status.conditions, READY)
        if ready is None or ready.status != "True":
            reason = "coil-egress-controller has not decided" if ready is None else ready.message or ready.reason
            by_reason.setdefault(reason, []).append(f"{policy.metadata.namespace}/{policy.metadata.name}")
    for reason, names in sorted(by_reason.items()):
        yield _error(
            "EgressGatewayPolicies", f"{_name_some(names)}: {reason}", "see docs/troubleshooting.md, EIP gateways"
        )


def _judge_gateways(gateways: Sequence[EgressGateway]) -> Iterator[Finding]:
    for gateway in gateways:
        name = f"EgressGateway {gateway.metadata.name}"
        ready, exhausted = (_condition(gateway.status.conditions, kind) for kind in (READY, EXHAUSTED))
        if ready is None or ready.status != "True":
            reason = "coil-egress-controller has not judged it" if ready is None else ready.message or ready.reason
            yield _error(name, reason, "see whether the agents of the nodes that it selects are ready")
        if exhausted is not None and exhausted.status == "True":
            yield _warning(name, exhausted.message, "add addresses to its ranges")


# --- what there is


def _describe_program(program: Workload, snapshot: Snapshot) -> page.ComponentDocument:
    counts = program.pods
    name = program.metadata.name
    leases = snapshot.leases.known()
    held = next((lease.spec.holder_identity for lease in leases if lease.metadata.name == name), "")
    place = (program.metadata.namespace, program.metadata.labels.get(LABEL_APP_COMPONENT))
    own = [
        each for each in snapshot.vitals.known() if (each.program.metadata.namespace, each.program.component) == place
    ]
    ages = [each.cache_age.total_seconds() for each in own if each.cache_age is not None]
    return page.ComponentDocument(
        name=name,
        namespace=program.metadata.namespace,
        kind=program.kind,
        version=program.spec.template.version,
        desired=counts.desired,
        ready=counts.ready,
        updated=counts.updated,
        leader=held if name in ELECTIONS else None,
        cache_age=round(max(ages), 1) if ages else None,
        certificate_end=min((each.certificate_end for each in own if each.certificate_end is not None), default=None),
    )


def _describe_nodes(snapshot: Snapshot) -> page.NodesDocument | None:
    if snapshot.nodes.items is None:
        return None
    blocked = [each.blocked_pods for each in snapshot.vitals.known() if each.blocked_pods is not None]
    return page.NodesDocument(
        total=len(snapshot.nodes.items), asked=len(blocked), blocked_pods=sum(blocked) if blocked else None
    )


def _describe_pool(pool: AddressPool, blocks: Sequence[AddressBlock], *, nodes: int | None) -> page.PoolDocument:
    """`nodes` is how many the cluster has, None if that is unknown."""
    ready, full = (pool.status.condition(kind) for kind in (PoolConditionType.READY, PoolConditionType.FULL))
    having = len({block.node for block in blocks if block.pool == pool.name and block.node})
    return page.PoolDocument(
        name=pool.name,
        ready=ready is not None and ready.status == "True",
        fill="" if full is None else full.reason,
        blocks=UseCounts.of(pool.status.blocks),
        addresses=UseCounts.of(pool.status.addresses),
        nodes=having,
        nodes_without=None if nodes is None else max(0, nodes - having),
    )


def _describe_egress(egress: Egress, snapshot: Snapshot) -> page.EgressDocument:
    place = (egress.metadata.namespace, egress.metadata.name)
    ready = next(
        (
            router.pods.ready
            for router in snapshot.routers.known()
            if (router.metadata.namespace, router.metadata.labels.get(LABEL_APP_INSTANCE)) == place
        ),
        0,
    )
    served = (
        each.client_addresses
        for each in snapshot.vitals.known()
        if (each.program.metadata.namespace, each.program.instance) == place
    )
    return page.EgressDocument(
        namespace=place[0],
        name=place[1],
        desired=egress.spec.replicas,
        ready=ready,
        client_addresses=next((count for count in served if count is not None), None),
    )


def _describe_gateway(gateway: EgressGateway, policies: Sequence[EgressGatewayPolicy]) -> page.GatewayDocument:
    name, status = gateway.metadata.name, gateway.status
    nodes, usage = status.node_list, status.ip_usage
    own = [policy for policy in policies if policy.status.egress_gateway_name == name]
    placed = sum(bool(policy.status.node) for policy in own)
    return page.GatewayDocument(
        name=name,
        nodes=len(nodes),
        ready_nodes=sum(node.status == TunnelPhase.READY for node in nodes),
        eips=sum(not entry.leaving for node in nodes for entry in node.eips),
        placed=placed,
        waiting=len(own) - placed,
        ipv4=page.FamilyUsage(total=usage.ipv4_total, free=usage.ipv4_free),
        ipv6=page.FamilyUsage(total=usage.ipv6_total, free=usage.ipv6_free),
    )


def _describe_warnings(snapshot: Snapshot) -> tuple[page.WarningDocument, ...] | None:
    if snapshot.events.items is None:
        return None
    recent = [event for event in snapshot.events.items if snapshot.at - _time_of(event, snapshot.at) < WARNING_AGE]
    recent.sort(key=lambda event: _time_of(event, snapshot.at), reverse=True)
    return tuple(
        page.WarningDocument(
            at=event.last_timestamp or event.metadata.creation_timestamp,
            component=event.reporting_component or event.source.component,
            about=" ".join(filter(None, (event.involved_object.kind, _key(event.involved_object)))),
            reason=event.reason,
            message=event.message,
            count=max(1, event.count),
        )
        for event in recent[:WARNINGS]
    )


def _time_of(event: Event, now: datetime) -> datetime:
    return event.last_timestamp or event.metadata.creation_timestamp or now


def _key(about: ObjectReference) -> str:
    return f"{about.namespace}/{about.name}" if about.namespace else about.name


def _condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == type_), None)


def _name_some(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _list_pods(namespace: str, *, component: str, instance: str = "") -> str:
    """The command that lists them."""
    labels = {LABEL_APP_NAME: APP_NAME, LABEL_APP_COMPONENT: component, LABEL_APP_INSTANCE: instance}
    selector = ",".join(f"{label}={value}" for label, value in labels.items() if value)
    return f"kubectl -n {namespace} get pods -l {selector} -o wide"


def _parse_time(text: str | None) -> datetime | None:
    """A MicroTime of Kubernetes; None for what is none."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None

"""The page of coil-raven: networks, ports, load balancers, its calls to OpenStack, and what it has told.

Bounded: `TABLE_ROWS` rows of each table, those first that are not as they should be; search reaches what is left out
of a table, as far as the document has it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from coil.page.frame import PATH, Frame, render_page, render_since, render_table, render_tile, render_tiles
from coil.page.grid import render_meter
from coil.page.markup import Content, Html, tag
from coil.page.neutron_document import (
    CallErrorDocument,
    CallsDocument,
    EventDocument,
    LoadBalancerDocument,
    NetworkDocument,
    NetworkState,
    NeutronDocument,
    PortDocument,
    PortState,
    ServiceDocument,
    ServiceState,
    SupernetDocument,
)
from coil.page.query import Query, networks_of
from coil.page.wording import count_text, noun, percent_text, span_text

TABLE_ROWS: Final = 300
MEMBERS: Final = 8
"""Members of a listener that a row has room for."""

T = TypeVar("T")

_NETWORK_CHIPS: Final = {NetworkState.READY: "good", NetworkState.WAITING: "warn", NetworkState.LEAVING: "held"}
_PORT_WORDS: Final = {
    PortState.ACTIVE: ("active", "good"),
    PortState.DOWN: ("down", "warn"),
    PortState.NOT_BOUND: ("not bound", "bad"),
    PortState.WAITING: ("waiting", "warn"),
    PortState.LEAVING: ("leaving", "held"),
    PortState.IDLE: ("idle", "held"),
}
_PORT_MARKS: Final = {
    PortState.ACTIVE: "used",
    PortState.DOWN: "cooling",
    PortState.NOT_BOUND: "orphaned",
    PortState.WAITING: "free",
    PortState.LEAVING: "withheld",
    PortState.IDLE: "free",
}
_SERVICE_WORDS: Final = {
    ServiceState.AS_PLANNED: ("as planned", "good"),
    ServiceState.CHANGING: ("changing", "warn"),
    ServiceState.FAILED: ("failed", "bad"),
    ServiceState.WAITING: ("waiting", "warn"),
    ServiceState.LEAVING: ("leaving", "held"),
}


def render_neutron_page(document: NeutronDocument, query: Query) -> str:
    """The page; with a query, the tables show only what it finds."""
    networks = _find(document.networks, query, _finds_network)
    ports = _find(document.ports, query, _finds_port)
    services = _find(document.services or (), query, _finds_service)
    found = ", ".join((noun(len(ports), "port"), noun(len(services), "Service"), noun(len(networks), "network")))
    frame = Frame(
        subject="Networks in OpenStack",
        about=f"the cluster {document.cluster}, as {document.replica} knows it, {_role(document)}",
        hint="Search by pod, namespace, Service, address, MAC or ID",
        at=document.at,
        query=query,
        found=f"{found} found" if query else "",
    )
    sections = [_render_summary(document)]
    if document.leads:
        sections.append(_render_ports(ports, query))
        if document.services is not None:
            sections.append(_render_services(services, query))
        sections.append(_render_networks(networks, query))
    sections.append(_render_events(_find(document.events, query, _finds_event), document))
    sections.append(_render_calls(document))
    return render_page(frame, *sections)


def _role(document: NeutronDocument) -> str:
    return "the leader" if document.leads else "a replica that stands by"


def _find(entries: Sequence[T], query: Query, finds: Callable[[T, Query], bool]) -> list[T]:
    return [entry for entry in entries if not query or finds(entry, query)]


def _finds_network(network: NetworkDocument, query: Query) -> bool:
    cidrs = [each.cidr for each in network.subnets]
    texts = [network.namespace, network.id or "", network.project or "", *(each.id for each in network.subnets)]
    return query.matches([*texts, *cidrs], networks_of(cidrs))


def _finds_port(port: PortDocument, query: Query) -> bool:
    texts = [_pod_text(port), port.id or "", port.mac or "", port.node or "", port.host or "", *port.addresses]
    return query.matches(texts, networks_of(port.addresses))


def _finds_service(service: ServiceDocument, query: Query) -> bool:
    addresses = [service.floating_ip or ""]
    for balancer in service.load_balancers:
        addresses.append(balancer.vip)
        addresses += [member.address for each in balancer.listeners for member in each.members]
    ids = [each.id for each in service.load_balancers]
    return query.matches([_service_text(service), *ids, *addresses], networks_of(addresses))


def _finds_event(event: EventDocument, query: Query) -> bool:
    return query.matches([_object_text(event), event.kind, event.reason, event.message])


def _render_summary(document: NeutronDocument) -> Html:
    calls = document.calls
    wrong = []
    if calls.paused_seconds:
        wrong.append(
            tag(
                "p",
                tag("b", "No calls at present: "),
                f"OpenStack has refused one for too many; the pause ends in {calls.paused_seconds:.0f} s",
                class_="wrong",
            )
        )
    tiles: list[Content] = []
    if document.leads:
        counts = document.port_counts
        tiles += [
            render_tile(f"ports {_PORT_WORDS[state][0]}", count, mark=_PORT_MARKS[state])
            for state in PortState
            if (count := counts.get(state.value, 0)) or state is PortState.ACTIVE
        ]
        tiles.append(render_tile("networks", sum(each.id is not None for each in document.networks)))
        if document.services is not None:
            balancers = sum(len(each.load_balancers) for each in document.services)
            tiles.append(render_tile("load balancers", balancers))
    span = span_text(calls.span_seconds)
    tiles.append(render_tile("calls", calls.count, note=f"in {span}, {calls.per_second:.1f} a second"))
    tiles.append(render_tile("errors", calls.errors, note=f"in {span}"))
    standby = None if document.leads else _render_standby(document)
    supernets = tag("div", map(_render_supernet, document.supernets), class_="nets") if document.supernets else None
    return tag("section", standby, wrong, render_tiles(tiles), supernets, _render_left_out(document), id="summary")


def _render_standby(document: NeutronDocument) -> Html:
    if document.leader is None:
        return tag("p", "No replica is known to lead. Only one that leads knows networks and ports.", class_="wrong")
    leader = tag("code", document.leader)
    return tag("p", "Only the replica that leads knows networks and ports: ", leader, id="standby")


def _render_supernet(supernet: SupernetDocument) -> Html:
    label = (
        f"{noun(supernet.left, 'part')} /{supernet.part_length} left of {count_text(supernet.parts)}, "
        f"{percent_text(supernet.taken, supernet.parts)} taken"
    )
    full = tag("span", "exhausted", class_="chip bad") if supernet.left == 0 else None
    meter = tag("span", label, render_meter("used", supernet.taken, supernet.parts), class_="amount")
    return tag("p", tag("code", supernet.network), " ", meter, " ", full)


def _render_left_out(document: NeutronDocument) -> Html | None:
    if not document.left_out:
        return None
    parts = ", ".join(f"{count_text(count)} {name}" for name, count in sorted(document.left_out.items()))
    return tag("p", f"Left out, also of the search and of JSON: {parts}", class_="note", id="left-out")


def _render_networks(networks: list[NetworkDocument], query: Query) -> Html:
    heads = ("Namespace", "State", "Subnets", "VNI", "MTU", "Ports", "Network", "Project")
    rows = map(_network_row, networks[:TABLE_ROWS])
    caption = _caption(noun(len(networks), "namespace"), len(networks), query)
    return tag("section", tag("h2", "Networks"), render_table(heads, rows, caption=caption), id="networks")


def _network_row(network: NetworkDocument) -> list[Content]:
    return [
        _link(network.namespace),
        tag("span", network.state.value, class_=f"chip {_NETWORK_CHIPS[network.state]}"),
        _lines(tag("code", each.cidr) for each in network.subnets),
        None if network.segmentation_id is None else str(network.segmentation_id),
        None if network.mtu is None else str(network.mtu),
        count_text(network.ports),
        _code(network.id),
        _code(network.project),
    ]


def _render_ports(ports: list[PortDocument], query: Query) -> Html:
    heads = ("Pod", "State", "Addresses", "MAC", "Node", "Host in Neutron", "Port")
    caption = _caption(noun(len(ports), "port"), len(ports), query)
    table = render_table(heads, map(_port_row, ports[:TABLE_ROWS]), caption=caption)
    return tag("section", tag("h2", "Ports of pods"), table, id="ports")


def _port_row(port: PortDocument) -> list[Content]:
    word, tone = _PORT_WORDS[port.state]
    return [
        _pod_text(port),
        tag("span", word, class_=f"chip {tone}"),
        _lines(tag("code", address) for address in port.addresses),
        _code(port.mac),
        _link(port.node),
        None if port.host == port.node else port.host,
        _code(port.id),
    ]


def _render_services(services: list[ServiceDocument], query: Query) -> Html:
    heads = ("Service", "State", "Cluster IP", "Octavia", "Listeners and members", "Floating IP", "Load balancer")
    caption = _caption(noun(len(services), "Service"), len(services), query)
    table = render_table(heads, map(_service_row, services[:TABLE_ROWS]), caption=caption)
    return tag("section", tag("h2", "Load balancers"), table, id="services")


def _service_row(service: ServiceDocument) -> list[Content]:
    word, tone = _SERVICE_WORDS[service.state]
    balancers = service.load_balancers
    return [
        [_service_text(service), tag("small", f" {service.type}", class_="soft") if service.type else None],
        tag("span", word, class_=f"chip {tone}"),
        _lines(tag("code", each.vip) for each in balancers),
        _lines(f"{each.provisioning_status} ({each.provider})" for each in balancers),
        _lines(line for each in balancers for line in _listener_lines(each)),
        _code(service.floating_ip),
        _lines(tag("code", each.id) for each in balancers),
    ]


def _listener_lines(balancer: LoadBalancerDocument) -> Iterable[Content]:
    is_ipv6 = ":" in balancer.vip
    for each in balancer.listeners:
        shown = each.members[:MEMBERS]
        rest = each.member_count - len(shown)
        members = ", ".join(
            f"[{member.address}]:{member.port}" if is_ipv6 else f"{member.address}:{member.port}" for member in shown
        )
        more = f" and {count_text(rest)} more" if rest else ""
        yield f"{each.protocol} {each.port} → {members or 'nobody'}{more}"


def _render_calls(document: NeutronDocument) -> Html:
    calls = document.calls
    caption = f"in the last {span_text(calls.span_seconds)}: {noun(calls.count, 'call')}, {noun(calls.errors, 'error')}"
    rows = [
        [each.call, count_text(each.count), count_text(each.errors), f"{each.mean_seconds:.3f} s"]
        for each in calls.by_call[:TABLE_ROWS]
    ]
    table = render_table(("Call", "Number", "Errors", "Mean duration"), rows, caption=caption)
    return tag("section", tag("h2", "Calls to OpenStack"), table, _render_errors(calls, document), id="calls")


def _render_errors(calls: CallsDocument, document: NeutronDocument) -> Html | None:
    if not calls.last_errors:
        return None
    rows = [_error_row(each, document) for each in calls.last_errors]
    return render_table(("Call", "Type", "In OpenStack's words", "When"), rows, caption="the last errors")


def _error_row(error: CallErrorDocument, document: NeutronDocument) -> list[Content]:
    return [error.call, error.code, error.message, [render_since(error.at, document.at), " ago"]]


def _render_events(events: list[EventDocument], document: NeutronDocument) -> Html:
    rows = [
        [
            [f"{event.kind} ", _object_text(event)],
            tag("span", event.reason, class_="chip warn" if event.type == "Warning" else "chip"),
            event.message,
            count_text(event.count),
            [render_since(event.at, document.at), " ago"],
        ]
        for event in events
    ]
    caption = f"the last {noun(len(events), 'Event')} of this replica, the newest first"
    table = render_table(("Object", "Reason", "Message", "Times", "Last"), rows, caption=caption)
    return tag("section", tag("h2", "Events"), table, id="events")


def _caption(counted: str, number: int, query: Query) -> str:
    searched = f", searched for “{query.text}”" if query else ""
    cut = f"; these are the first {TABLE_ROWS}, search for the others" if number > TABLE_ROWS else ""
    return counted + searched + cut


def _pod_text(port: PortDocument) -> str:
    return port.description if port.pod is None else f"{port.namespace}/{port.pod}"


def _service_text(service: ServiceDocument) -> str:
    return service.name if service.namespace is None else f"{service.namespace}/{service.name}"


def _object_text(event: EventDocument) -> str:
    return f"{event.namespace}/{event.name}" if event.namespace else event.name


def _code(value: str | None) -> Html | None:
    return tag("code", value) if value else None


def _lines(parts: Iterable[Content]) -> list[Content]:
    return [tag("div", part) for part in parts]


def _link(value: str | None) -> Html | None:
    """Searches for it; works without the script as well."""
    return tag("a", value, href=f"{PATH}?q={value}", data_find=value) if value else None

"""The part of the cluster's page about a VPC: its subnets, and how long their addresses will do.

Bounded: `SUBNETS` rows, those first that run dry first.
"""

import math

from coil.page.cluster_document import ClusterDocument, InterfacesDocument, VpcSubnetDocument
from coil.page.frame import render_since, render_table
from coil.page.grid import render_meter
from coil.page.markup import Content, Html, tag
from coil.page.query import Query
from coil.page.wording import count_text, noun, percent_text

SUBNETS = 200
HOUR = 3600.0
DAY = 86400.0


def render_vpc(interfaces: InterfacesDocument, document: ClusterDocument, query: Query) -> Html:
    """The section; with a query only the subnets that it matches."""
    head = tag("h2", "Subnets of the cluster ", interfaces.cluster)
    troubles = [
        tag("p", tag("b", f"EC2 cannot be asked ({part}): "), why, class_="wrong")
        for part, why in sorted(interfaces.troubles.items())
    ]
    if interfaces.seen_at is None:
        said = "not looked at yet" if document.leads else "only the replica that leads looks at EC2"
        return tag("section", head, troubles, tag("p", said, class_="soft"), id="vpc")
    subnets = [each for each in interfaces.subnets if not query or query.matches([each.id, each.zone, each.ipv4])]
    subnets.sort(key=_urgency)
    caption = noun(len(subnets), "subnet")
    if len(subnets) > SUBNETS:
        caption += f"; these are the first {SUBNETS}, search for the others"
    if interfaces.unattached is not None:
        caption += f"; {noun(interfaces.unattached, 'interface')} attached to nothing"
    heads = ("Subnet", "Zone", "Network", "Free", "Interfaces", "Taken per hour", "Dry in")
    table = render_table(heads, map(_row, subnets[:SUBNETS]), caption=caption)
    seen = tag("p", "EC2 was asked ", render_since(interfaces.seen_at, document.at), " ago", class_="soft")
    return tag("section", head, troubles, table, seen, id="vpc")


def _urgency(subnet: VpcSubnetDocument) -> tuple[float, str]:
    return (math.inf if subnet.dry_in_seconds is None else subnet.dry_in_seconds, subnet.id)


def _row(subnet: VpcSubnetDocument) -> list[Content]:
    used = subnet.total - subnet.free
    label = f"{count_text(subnet.free)} of {count_text(subnet.total)}, {percent_text(used, subnet.total)} in use"
    tagged = tag("span", "tagged", class_="chip") if subnet.tagged else None
    rate = subnet.taken_per_hour
    return [
        [subnet.id, " " if tagged else None, tagged],
        subnet.zone,
        tag("code", subnet.ipv4),
        tag("span", label, render_meter("used", used, subnet.total), class_="amount"),
        count_text(subnet.interfaces),
        "not known yet" if rate is None else count_text(round(rate)),
        _render_dry(subnet),
    ]


def _render_dry(subnet: VpcSubnetDocument) -> Content:
    left = subnet.dry_in_seconds
    if left is None:
        return None
    if left == 0:
        return tag("span", "dry", class_="chip bad")
    if left < HOUR:
        return tag("span", f"{math.ceil(left / 60)} min", class_="chip warn")
    return f"{left / HOUR:.0f} h" if left < 2 * DAY else f"{left / DAY:.0f} d"

"""The dashboard of egress: router pods and floating addresses, as `python -m integration.generate` writes it."""

from typing import Any

from integration.dashboard.panel import RATE, Curve, Panel, Row, Style, Unit, Variable, quantile, render_dashboard

_GATEWAY = 'gateway=~"$gateway"'
_ROUTER = 'namespace=~"$namespace"'
_NODE = 'instance=~"$instance"'
_ELECTION = 'name="coil-egress-controller"'


def _of_gateways(metric: str, *labels: str) -> str:
    """All replicas say the same."""
    return f"max by ({', '.join(('gateway', *labels))}) ({metric}{{{_GATEWAY}}})"


GATEWAYS = Row(
    "Floating addresses",
    (
        Panel(
            title="Policies that no node carries",
            curves=(
                Curve(
                    f'max by (gateway) (coil_egress_gateway_policies{{state="unplaced", {_GATEWAY}}})', "{{gateway}}"
                ),
            ),
            style=Style.BARS,
            about="Their traffic is dropped, or leaves from its own node, as the gateway's failPolicy says.",
            thresholds=((1, "red"),),
        ),
        Panel(
            title="Policies",
            curves=(Curve(_of_gateways("coil_egress_gateway_policies", "state"), "{{gateway}} {{state}}"),),
            stacked=True,
        ),
        Panel(
            title="Nodes",
            curves=(Curve(_of_gateways("coil_egress_gateway_nodes", "state"), "{{gateway}} {{state}}"),),
            about="Carrying addresses, ready to take some, or neither.",
            stacked=True,
        ),
        Panel(
            title="Addresses",
            curves=(
                Curve(
                    _of_gateways("coil_egress_gateway_addresses", "family", "state"), "{{gateway}} {{family}} {{state}}"
                ),
            ),
        ),
        Panel(
            title="Failovers",
            curves=(Curve(f"sum(increase(coil_egress_gateway_revocations_total{RATE}))", "nodes"),),
            about="Gateway nodes that fell silent, and lost their leases.",
            width=4,
        ),
        Panel(
            title="Time to notice a lost node",
            curves=tuple(
                Curve(quantile(share, "coil_egress_gateway_detection_seconds", ""), name)
                for share, name in ((0.5, "p50"), (0.99, "p99"))
            ),
            unit=Unit.SECONDS,
            width=4,
        ),
        Panel(
            title="Writes of endpoint slices",
            curves=(
                Curve(f"sum by (operation) (rate(coil_egress_endpoint_slice_writes_total{RATE}))", "{{operation}}"),
            ),
            unit=Unit.PER_SECOND,
            width=4,
        ),
        Panel(
            title="Leaders",
            curves=(Curve(f"sum(leader_election_master_status{{{_ELECTION}}})", "leaders"),),
            style=Style.NUMBER,
            about="While nobody leads, no address moves.",
            width=4,
        ),
    ),
)

NODES = Row(
    "Gateway nodes",
    (
        Panel(
            title="Addresses that nodes carry",
            curves=(Curve(f"sum by (instance) (coil_egress_eip_addresses{{{_NODE}}})", "{{instance}}"),),
            stacked=True,
        ),
        Panel(
            title="Leases that are held",
            curves=(Curve(f"sum by (instance) (coil_egress_eip_lease_held{{{_NODE}}})", "{{instance}}"),),
        ),
        Panel(
            title="Leases that were lost",
            curves=(
                Curve(
                    f"sum by (instance) (increase(coil_egress_eip_lease_losses_total{{{_NODE}}}{RATE}))", "{{instance}}"
                ),
            ),
        ),
        Panel(
            title="Renewals that were not acknowledged",
            curves=(
                Curve(
                    "sum by (instance, result)"
                    f' (rate(coil_egress_eip_lease_renewals_total{{result!="acknowledged", {_NODE}}}{RATE}))',
                    "{{instance}} {{result}}",
                ),
            ),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="Length of renewals, p99",
            curves=(
                Curve(quantile(0.99, "coil_egress_eip_lease_renewal_seconds", _NODE, by="instance"), "{{instance}}"),
            ),
            unit=Unit.SECONDS,
            about="Half of --eip-lease is the most that a renewal may take.",
        ),
        Panel(
            title="Work on the kernel, p99",
            curves=(Curve(quantile(0.99, "coil_egress_eip_apply_seconds", _NODE, by="operation"), "{{operation}}"),),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Steps that the kernel refused",
            curves=(
                Curve(
                    f"sum by (instance, operation) (rate(coil_egress_eip_apply_failures_total{{{_NODE}}}{RATE}))",
                    "{{instance}} {{operation}}",
                ),
            ),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="What others have changed",
            curves=(
                Curve(
                    f"sum by (instance, what) (increase(coil_egress_eip_repairs_total{{{_NODE}}}{RATE}))",
                    "{{instance}} {{what}}",
                ),
            ),
            about="In our tables and on our links; it was put right.",
        ),
        Panel(
            title="Elements of nftables",
            curves=(Curve(f"max by (set) (coil_egress_eip_elements{{{_NODE}}})", "{{set}}, the most"),),
        ),
    ),
)

ROUTERS = Row(
    "Router pods",
    (
        Panel(
            title="Client pods",
            curves=(
                Curve(
                    f"max by (namespace, egress) (coil_egress_client_pod_count{{{_ROUTER}}})",
                    "{{namespace}}/{{egress}}",
                ),
            ),
        ),
        Panel(
            title="Tracked connections",
            curves=(
                Curve(
                    f"max by (namespace, egress) (coil_egress_nf_conntrack_entries_count{{{_ROUTER}}}"
                    f" / coil_egress_nf_conntrack_entries_limit{{{_ROUTER}}})",
                    "{{namespace}}/{{egress}}, the fullest",
                ),
            ),
            unit=Unit.SHARE,
            about="Of what a router pod can track; beyond it new connections are dropped.",
        ),
        Panel(
            title="Masqueraded",
            curves=(
                Curve(
                    "sum by (namespace, egress)"
                    f" (rate(coil_egress_nftables_masqueraded_bytes_total{{{_ROUTER}}}{RATE}))",
                    "{{namespace}}/{{egress}}",
                ),
            ),
            unit=Unit.BYTES_PER_SECOND,
        ),
        Panel(
            title="Clients without a tunnel",
            curves=(Curve("sum by (instance) (coil_egress_refused_peers) > 0", "{{instance}}"),),
        ),
        Panel(
            title="Packets of no known connection",
            curves=(
                Curve(
                    f"sum by (namespace, egress) (rate(coil_egress_nftables_invalid_packets_total{{{_ROUTER}}}{RATE}))",
                    "{{namespace}}/{{egress}}",
                ),
            ),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="Pods whose Egress is wrong",
            curves=(
                Curve("sum by (instance, reason) (coil_node_egress_problems) > 0", "{{instance}} {{reason}}"),
                Curve("sum by (instance) (coil_node_egress_blocked_pods) > 0", "{{instance}} held back"),
                Curve(
                    f"sum by (instance, reason) (rate(coil_node_egress_refused_adds_total{RATE})) > 0",
                    "{{instance}} {{reason}}: failed ADDs per second",
                ),
            ),
        ),
    ),
)


def egress_dashboard() -> dict[str, Any]:
    """The whole document."""
    return render_dashboard(
        uid="coil-egress",
        title="Coil / egress",
        about="Floating egress addresses, the nodes that carry them, and the router pods of Egresses.",
        variables=(
            Variable("gateway", "gateway", "coil_egress_gateway_nodes"),
            Variable("instance", "instance", "coil_egress_eip_lease_held"),
            Variable("namespace", "namespace", "coil_egress_client_pod_count"),
        ),
        rows=(GATEWAYS, NODES, ROUTERS),
    )

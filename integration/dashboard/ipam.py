"""The dashboard of address management, as `python -m integration.generate` writes it into the chart."""

from typing import Any

from integration.dashboard.panel import RATE, Curve, Panel, Row, Style, Unit, Variable, quantile, render_dashboard

_POOL = 'pool=~"$pool"'
_NODE = 'instance=~"$instance"'
_ELECTION = 'name="coil-ipam-controller"'


def _operation(operation: str) -> Panel:
    metric, selector = "coil_cni_operation_duration_seconds", f'operation="{operation}", {_NODE}'
    return Panel(
        title=f"{operation}: how long",
        curves=tuple(
            Curve(quantile(share, metric, f'{selector}, outcome="ok"'), name)
            for share, name in ((0.5, "p50"), (0.99, "p99"))
        ),
        unit=Unit.SECONDS,
    )


POOLS = Row(
    "Pools",
    (
        Panel(
            title="Blocks in use",
            curves=(
                Curve(
                    f"max by (pool) (coil_controller_allocated_blocks{{{_POOL}}})"
                    f" / (max by (pool) (coil_controller_max_blocks{{{_POOL}}}) > 0)",
                    "{{pool}}",
                ),
            ),
            unit=Unit.SHARE,
            style=Style.BARS,
            about="The part of each pool's blocks that nodes have.",
            thresholds=((0.75, "yellow"), (0.9, "red")),
        ),
        Panel(
            title="Blocks",
            curves=(
                Curve(f"max by (pool) (coil_controller_allocated_blocks{{{_POOL}}})", "{{pool}} in use"),
                Curve(f"max by (pool) (coil_controller_max_blocks{{{_POOL}}})", "{{pool}} at most"),
            ),
        ),
        Panel(
            title="Addresses on nodes",
            curves=(Curve(f"sum by (pool, state) (coil_node_addresses{{{_POOL}}})", "{{pool}} {{state}}"),),
            about="In the blocks that nodes have: given to pods, resting, and free.",
            stacked=True,
        ),
        Panel(
            title="Blocks that dead nodes hold",
            curves=(Curve(f"max by (pool) (coil_controller_dead_node_blocks{{{_POOL}}})", "{{pool}}"),),
        ),
        Panel(
            title="Dead nodes with blocks",
            curves=(Curve("max(coil_controller_dead_nodes)", "nodes"),),
            style=Style.NUMBER,
            width=4,
            thresholds=((1, "red"),),
        ),
        Panel(
            title="Doubtful blocks",
            curves=(Curve("max(coil_controller_doubtful_blocks)", "blocks"),),
            style=Style.NUMBER,
            about="Blocks that contradict their pool, belong to nobody or do not go; an Event on each says why.",
            width=4,
            thresholds=((1, "red"),),
        ),
        Panel(
            title="Pool reviews by the webhook",
            curves=(Curve(f"sum by (path, answer) (rate(coil_admission_reviews_total{RATE}))", "{{path}} {{answer}}"),),
            unit=Unit.PER_SECOND,
            width=4,
        ),
        Panel(
            title="Webhook certificate ends",
            curves=(Curve("min(coil_admission_certificate_end_timestamp_seconds > 0) * 1000", "end"),),
            unit=Unit.SINCE_1970,
            style=Style.NUMBER,
            width=4,
        ),
    ),
)

NODES = Row(
    "Nodes",
    (
        Panel(
            title="Addresses by state",
            curves=(
                Curve(f"sum by (instance, state) (coil_node_addresses{{{_POOL}, {_NODE}}})", "{{instance}} {{state}}"),
            ),
            stacked=True,
        ),
        Panel(
            title="Free addresses",
            curves=(
                Curve(
                    f'sum by (instance, pool) (coil_node_addresses{{state="free", {_POOL}, {_NODE}}})',
                    "{{instance}} {{pool}}",
                ),
            ),
            about="A node without one asks for a block when the next pod comes.",
        ),
        Panel(
            title="Blocks and exported routes",
            curves=(
                Curve(f"sum by (instance) (coil_node_blocks{{{_POOL}, {_NODE}}})", "{{instance}} blocks"),
                Curve(f"sum by (instance) (coil_node_exported_routes{{{_NODE}}})", "{{instance}} routes"),
            ),
        ),
        Panel(
            title="Export failures",
            curves=(
                Curve(f"sum by (instance) (rate(coil_node_export_failures_total{{{_NODE}}}{RATE}))", "{{instance}}"),
            ),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="Routes to other nodes",
            curves=(Curve(f"sum by (instance) (coil_router_routes_synced{{{_NODE}}})", "{{instance}}"),),
            about="Only with coild --route-sync.",
        ),
        Panel(
            title="Networks in trouble",
            curves=(
                Curve(
                    f"sum by (instance, trouble) (coil_router_troubled_networks{{{_NODE}}}) > 0",
                    "{{instance}} {{trouble}}",
                ),
            ),
            about="Only with coild --route-sync: what is not routed as it should be, and why.",
        ),
    ),
)

OPERATIONS = Row(
    "CNI",
    (
        _operation("ADD"),
        _operation("DEL"),
        Panel(
            title="Operations by outcome",
            curves=(
                Curve(
                    f"sum by (operation, outcome) (rate(coil_cni_operation_duration_seconds_count{{{_NODE}}}{RATE}))",
                    "{{operation}} {{outcome}}",
                ),
            ),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="Under way",
            curves=(Curve(f"sum by (operation) (coil_cni_operations_in_flight{{{_NODE}}})", "{{operation}}"),),
        ),
        Panel(
            title="Sent away",
            curves=(
                Curve(f"sum by (reason) (rate(coil_cni_refused_operations_total{{{_NODE}}}{RATE}))", "{{reason}}"),
            ),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="Waiting for an address",
            curves=(
                Curve(quantile(0.5, "coil_node_address_wait_seconds", f"{_POOL}, {_NODE}", by="pool"), "{{pool}} p50"),
                Curve(quantile(0.99, "coil_node_address_wait_seconds", f"{_POOL}, {_NODE}", by="pool"), "{{pool}} p99"),
            ),
            unit=Unit.SECONDS,
            about="Only pods that found no rested address on their node.",
        ),
        Panel(
            title="Waits by outcome",
            curves=(
                Curve(
                    f"sum by (pool, outcome) (rate(coil_node_address_wait_seconds_count{{{_POOL}, {_NODE}}}{RATE}))",
                    "{{pool}} {{outcome}}",
                ),
            ),
            unit=Unit.PER_SECOND,
        ),
    ),
)

WORK = Row(
    "Work",
    (
        Panel(
            title="Leaders",
            curves=(Curve(f"sum(leader_election_master_status{{{_ELECTION}}})", "leaders"),),
            style=Style.NUMBER,
            about="One, but for the seconds after a leader's death.",
            width=4,
        ),
        Panel(
            title="Who leads",
            curves=(Curve(f"leader_election_master_status{{{_ELECTION}}}", "{{instance}}"),),
            width=4,
        ),
        Panel(
            title="Queues",
            curves=(Curve("sum by (name) (workqueue_depth)", "{{name}}"),),
        ),
        Panel(
            title="Time in queues, p99",
            curves=(Curve(quantile(0.99, "workqueue_queue_duration_seconds", "", by="name"), "{{name}}"),),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Reconciles that failed",
            curves=(
                Curve(
                    "sum by (controller, result)"
                    f' (rate(controller_runtime_reconcile_total{{result=~"error|timeout"}}{RATE}))',
                    "{{controller}} {{result}}",
                ),
            ),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="Length of reconciles, p99",
            curves=(
                Curve(
                    quantile(0.99, "controller_runtime_reconcile_time_seconds", "", by="controller"), "{{controller}}"
                ),
            ),
            unit=Unit.SECONDS,
        ),
        Panel(
            title="Events that were not written",
            curves=(Curve(f"sum by (reason) (rate(event_recorder_drops_total{RATE}))", "{{reason}}"),),
            unit=Unit.PER_SECOND,
        ),
    ),
)

SIGHT = Row(
    "Sight of the API server",
    (
        Panel(
            title="Lists and watches that failed",
            curves=(
                Curve(
                    f"sum by (job, resource, error) (rate(informer_failures_total{RATE}))",
                    "{{job}} {{resource}} {{error}}",
                ),
            ),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="Objects in caches",
            curves=(Curve("max by (job, resource) (informer_objects)", "{{job}} {{resource}}"),),
        ),
        Panel(
            title="Watch events",
            curves=(Curve(f"sum by (job, resource) (rate(informer_events_total{RATE}))", "{{job}} {{resource}}"),),
            unit=Unit.PER_SECOND,
        ),
        Panel(
            title="New lists",
            curves=(Curve(f"sum by (job, resource) (increase(informer_lists_total{RATE}))", "{{job}} {{resource}}"),),
            about="One at each start, and one whenever a watch has lost its place.",
        ),
        Panel(
            title="Memory",
            curves=(
                Curve(
                    "max by (job) (process_resident_memory_bytes and on (job, instance) informer_objects)",
                    "{{job}}, the largest",
                ),
            ),
            unit=Unit.BYTES,
        ),
        Panel(
            title="Processor",
            curves=(
                Curve(
                    f"max by (job) (rate(process_cpu_seconds_total{RATE}) and on (job, instance) informer_objects)",
                    "{{job}}, the busiest",
                ),
            ),
            unit=Unit.SHARE,
        ),
    ),
)


def ipam_dashboard() -> dict[str, Any]:
    """The whole document."""
    return render_dashboard(
        uid="coil-ipam",
        title="Coil / addresses",
        about="Address pools, the nodes' blocks and addresses, and the programs that hand them out.",
        variables=(
            Variable("pool", "pool", "coil_controller_max_blocks"),
            Variable("instance", "instance", "coil_cni_operations_in_flight"),
        ),
        rows=(POOLS, NODES, OPERATIONS, WORK, SIGHT),
    )

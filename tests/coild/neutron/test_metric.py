"""What a node with ports exports is what docs/metrics.md lists."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from coild.model.port_error import BindError
from integration.dashboard.documented import differences, without_series
from integration.dashboard.exposition import parse_exposition
from tests.coild.neutron.port_node import PortNode
from tests.coild.scene import key

SECTION = "coild with ports in Neutron"


async def test_a_node_exports_what_is_documented(tmp_path: Path) -> None:
    node = PortNode(tmp_path)
    await node.start()
    registry = CollectorRegistry()
    for collector in node.source.metrics():
        registry.register(collector)
    for container in ("c1", "c2"):
        await node.add(container)

    async def gate(step: str) -> None:
        if step == "unbind":
            raise BindError("away")

    node.binding.gate = gate
    await node.engine.delete(key("c1"))
    page = generate_latest(registry).decode()
    # Which processes do not export: `make_registry`.
    exported = {name: each for name, each in parse_exposition(page).items() if not name.endswith("_created")}
    assert differences(exported, SECTION) == []
    assert without_series([exported], SECTION) == []
    for line in (
        'coil_node_neutron_ports{state="bound"} 1.0',
        'coil_node_neutron_ports{state="left"} 1.0',
        'coil_node_neutron_port_wait_seconds_count{outcome="served"} 2.0',
        'coil_node_neutron_active_wait_seconds_count{outcome="served"} 2.0',
        'coil_node_neutron_bind_seconds_count{operation="bind",outcome="done",type="memory"} 2.0',
        # The DEL, and the background at once after it.
        'coil_node_neutron_bind_seconds_count{operation="unbind",outcome="failed",type="memory"} 2.0',
    ):
        assert line in page.splitlines()
    await node.kill()


async def test_a_type_that_nothing_knows_becomes_no_label(tmp_path: Path) -> None:
    node = PortNode(tmp_path)
    await node.start()
    node.annotate("c1", type="unheard-of")
    with pytest.raises(Exception, match="unheard-of"):
        await node.add("c1")
    registry = CollectorRegistry()
    for collector in node.source.metrics():
        registry.register(collector)
    assert "unheard-of" not in generate_latest(registry).decode()
    await node.kill()

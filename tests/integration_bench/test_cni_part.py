"""Which figures the CNI part promises."""

from integration.bench.cni_part import PART
from integration.bench.cni_side import BRIDGE_NAME, PEER_NAME


def test_each_figure_is_there_against_each_peer() -> None:
    named = {figure.name: figure for figure in PART.figures}
    plain = [name for name in named if not name.endswith(".bridge")]
    assert len(named) == len(PART.figures) == 2 * len(plain)
    for name in plain:
        other = named[f"{name}.bridge"]
        assert (named[name].peer, other.peer) == (PEER_NAME, BRIDGE_NAME)
        assert (named[name].unit, named[name].better) == (other.unit, other.better)
    assert {"cni.add.p50_ms.par1", "cni.del.per_s.par32", "cni.add.cpu_ms", "cni.del.cpu_ms"} <= {*plain}

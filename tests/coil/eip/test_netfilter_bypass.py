"""Data planes that may carry pods' packets past netfilter are told by their links."""

import pytest

from coil.eip.netfilter_bypass import bypass_condition
from coil.kernel.link import LinkName


@pytest.mark.parametrize(
    ("links", "status", "words"),
    [
        (("lo", "eth0", "cni0", "cali12345", "cilium_vxlan"), "False", "no data plane"),
        (("lo", "cilium_host", "cilium_net"), "Unknown", "bpf.hostLegacyRouting"),
        (("bpfin.cali", "bpfout.cali"), "True", "Calico's eBPF data plane"),
        (("bpfnatin", "bpfnatout"), "True", "Calico's eBPF data plane"),
        (("cilium_host", "bpfin.cali"), "True", "bpf.hostLegacyRouting"),
    ],
)
def test_what_is_told(links: tuple[str, ...], status: str, words: str) -> None:
    condition = bypass_condition([LinkName(link) for link in links])
    assert (condition.type, condition.status) == ("NetfilterBypassed", status)
    assert words in condition.message

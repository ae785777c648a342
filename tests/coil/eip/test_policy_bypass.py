"""Data planes that may carry pods' packets past policies are told by their links."""

import pytest

from coil.eip.policy_bypass import bypass_condition
from coil.kernel.link import LinkName


@pytest.mark.parametrize(
    ("links", "status", "words"),
    [
        (("lo", "eth0", "cni0", "cali12345", "cilium_vxlan"), "False", "no data plane"),
        (("lo", "cilium_host", "cilium_net"), "Unknown", "bpf.hostLegacyRouting"),
        (("bpfin.cali", "bpfout.cali"), "True", "Calico's eBPF data plane"),
        (("bpfnatin", "bpfnatout"), "True", "Calico's eBPF data plane"),
        (("cilium_host", "bpfin.cali"), "True", "bpf.hostLegacyRouting"),
        (("cni0", "kube-ipvs0"), "Unknown", "kube-proxy in IPVS mode"),
        (("cni0", "kube-ipvs0", "bpfin.cali"), "True", "kube-proxy in IPVS mode"),
    ],
)
def test_what_is_told(links: tuple[str, ...], status: str, words: str) -> None:
    condition = bypass_condition([LinkName(link) for link in links])
    assert (condition.type, condition.status) == ("PoliciesBypassed", status)
    assert words in condition.message

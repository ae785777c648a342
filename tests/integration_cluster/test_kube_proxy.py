"""Whether a Service's address leads to an endpoint, by what the kernel prints of IPVS."""

import pytest

from integration.cluster.kube_proxy import has_real_server

TABLE = """\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
UDP  0A600007:15B3 rr
  -> 0A510001:15B3      Masq    1      0          0
TCP  0A600008:01BB rr
UDP  [fd96:0000:0000:0000:0000:0000:0000:0007]:15B3 rr
  -> [fd81:0000:0000:0000:0000:0000:0000:0001]:15B3      Masq    1      0          0
TCP  [fd96:0000:0000:0000:0000:0000:0000:0008]:01BB rr
"""


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("10.96.0.7", True),
        ("fd96::7", True),
        ("10.96.0.8", False),
        ("fd96::8", False),
        ("10.96.0.9", False),
        ("10.81.0.1", False),
    ],
)
def test_only_a_virtual_server_with_a_real_one_is_programmed(address: str, found: bool) -> None:
    assert has_real_server(TABLE, address) is found


def test_a_kernel_without_ipvs_has_none() -> None:
    assert not has_real_server("", "10.96.0.7")

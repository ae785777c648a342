"""What the nodes of clients read of an Egress."""

import msgspec

from coil.crd.egress import ClientEgress, Egress

DOCUMENT = {
    "metadata": {
        "name": "nat",
        "namespace": "internet",
        "uid": "8e1c",
        "resourceVersion": "7",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "secret"},
    },
    "spec": {
        "destinations": ["0.0.0.0/0"],
        "fouSourcePortAuto": True,
        "allowedNamespaces": {"matchLabels": {"tenant": "shop"}},
        "template": {"spec": {"containers": [{"name": "egress", "env": [{"name": "KEY", "value": "secret"}]}]}},
        "strategy": {"type": "secret"},
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}},
        "podDisruptionBudget": {"maxUnavailable": "secret"},
    },
    "status": {"clusterNetworks": ["100.64.0.0/10"]},
}


def test_what_is_about_router_pods_is_not_kept() -> None:
    text = msgspec.json.encode(DOCUMENT)
    whole, read = msgspec.json.decode(text, type=Egress), msgspec.json.decode(text, type=ClientEgress)
    assert "secret" in repr(whole)
    assert "secret" not in repr(read)
    assert "timeoutSeconds" not in repr(read)
    for field in ("destinations", "fou_source_port_auto", "allowed_namespaces"):
        assert getattr(read.spec, field) == getattr(whole.spec, field)
    assert read.status == whole.status
    for field in ("name", "namespace", "uid", "resource_version"):
        assert getattr(read.metadata, field) == getattr(whole.metadata, field)

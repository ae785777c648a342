import yaml

from integration.demo.eip_move import show_gap
from integration.demo.eip_scene import find_remains, render_manifest

GATEWAY = {
    "apiVersion": "egressgateway.spidernet.io/v1beta1",
    "kind": "EgressGateway",
    "metadata": {"name": "eg1", "uid": "unseen", "managedFields": []},
    "spec": {"ranges": {"ipv4": ["198.18.0.120-198.18.0.123"]}, "failPolicy": "Closed"},
    "status": {"revision": 3},
}


def test_a_manifest_shows_the_fields_that_matter() -> None:
    assert yaml.safe_load(render_manifest(GATEWAY, ["ranges"])) == {
        "kind": "EgressGateway",
        "metadata": {"name": "eg1"},
        "spec": {"ranges": {"ipv4": ["198.18.0.120-198.18.0.123"]}},
    }


def test_what_stays_is_told_by_node() -> None:
    before: dict[str, dict[str, object]] = {"n1": {"eips": [], "rules": 40}, "n2": {"eips": [], "rules": 40}}
    after: dict[str, dict[str, object]] = {"n1": {"eips": [], "rules": 40}, "n2": {"eips": ["a"], "rules": 40}}
    assert find_remains(before, before) == []
    assert find_remains(before, after) == ["n2, eips: ['a'] instead of []"]


def test_gaps_are_told_in_milliseconds() -> None:
    assert show_gap(0.6601) == "660 ms"

"""Names by which objects in Neutron are known again."""

import pytest

from coil.neutron.identity import (
    LONGEST,
    LONGEST_DESCRIPTION,
    ClusterId,
    Identity,
    Kind,
    cluster_id,
    cluster_tag,
    describe,
    parse_identity,
)

UID = "6b7e4c1e-3d0a-4f57-8b8e-2f0c7e1d9a41"


@pytest.mark.parametrize("kind", Kind)
def test_an_identity_is_read_again_from_its_name(kind: Kind) -> None:
    identity = Identity(ClusterId("123456789012"), kind, UID)
    assert parse_identity(identity.name) == identity
    assert len(identity.name) <= LONGEST


@pytest.mark.parametrize(
    "name",
    [
        "",
        "web",
        "coil:",
        f"coil:abc:net:{UID}:more",
        f"coil:abc:nat:{UID}",
        f"coil:ABC:net:{UID}",
        f"coil:abc:net:{UID} ",
        f"coil:abc:net:{UID}\n",
        "coil:abc:net:",
        f"coil::net:{UID}",
    ],
)
def test_other_names_are_not_ours(name: str) -> None:
    assert parse_identity(name) is None


def test_an_identity_that_could_not_be_read_again_is_refused() -> None:
    with pytest.raises(ValueError, match="do not make up a name"):
        Identity(ClusterId("abc"), Kind.PORT, "a:b")


def test_two_clusters_have_different_names_though_nobody_gave_them_any() -> None:
    one, other = cluster_id(UID), cluster_id(UID.replace("6", "7"))
    assert one != other
    assert one == cluster_id(UID)
    assert parse_identity(Identity(one, Kind.NETWORK, UID).name) is not None


@pytest.mark.parametrize("given", ["-abc", "abc-", "Abc", "a_b", "abcdefghijklm", "a:b", "a/b"])
def test_a_cluster_name_that_would_not_fit_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="no cluster name"):
        cluster_id(UID, given)


def test_a_given_cluster_name_is_taken() -> None:
    assert cluster_id("", "prod-1") == "prod-1"
    assert cluster_tag(cluster_id("", "prod-1")) == "coil:prod-1"
    with pytest.raises(ValueError, match="no UID"):
        cluster_id("")


def test_long_names_stay_apart_in_descriptions() -> None:
    one = describe("Service", "n" * 63, "s" * 252 + "a")
    other = describe("Service", "n" * 63, "s" * 252 + "b")
    assert one != other
    assert len(one) <= LONGEST_DESCRIPTION
    assert len(other) <= LONGEST_DESCRIPTION
    assert describe("Pod", "default", "web-0") == "Pod default/web-0"
    assert describe("Namespace", "", "default") == "Namespace default"

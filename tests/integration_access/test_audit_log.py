"""The calls in an audit log, and the files that they are kept in."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from integration.cluster.audit_log import CALLS_VARIABLE, Call, audit_flags, keep_calls, load_calls, select_calls
from tests.integration_access.event import IN_NAMESPACE, line

GET_NODE = Call(account="coild", verb="get", group="", resource="nodes", role="ClusterRole coild")


@pytest.mark.parametrize(
    ("event", "call"),
    [
        (line(name="n1"), GET_NODE),
        (
            line(apiVersion="v1beta1", deprecated=True),
            Call(
                account="coild", verb="get", group="", resource="nodes", role="ClusterRole coild", deprecated="v1beta1"
            ),
        ),
        (
            line(
                user="system:serviceaccount:kube-system:coil-ipam-controller",
                verb="update",
                resource="leases",
                reason=IN_NAMESPACE,
                apiGroup="coordination.k8s.io",
                namespace="kube-system",
                name="coil-ipam-controller",
            ),
            Call(
                account="coil-ipam-controller",
                verb="update",
                group="coordination.k8s.io",
                resource="leases",
                role="Role coil-ipam-controller in kube-system",
            ),
        ),
        (
            line(verb="patch", resource="blockrequests", subresource="status", apiGroup="coil.cybozu.com"),
            Call(
                account="coild",
                verb="patch",
                group="coil.cybozu.com",
                resource="blockrequests/status",
                role="ClusterRole coild",
            ),
        ),
        (
            line(resource="secrets", namespace="default", name="token", decision="forbid", reason=""),
            Call(account="coild", verb="get", group="", resource="secrets", namespace="default", name="token"),
        ),
        (
            line(reason="somebody else's words"),
            Call(account="coild", verb="get", group="", resource="nodes", role="somebody else's words"),
        ),
    ],
)
def test_a_call(event: bytes, call: Call) -> None:
    assert select_calls([event]) == {call}


@pytest.mark.parametrize(
    "event",
    [
        line(agent="kubectl/v1.30.0"),
        line(user="system:admin"),
        line(decision=""),  # too many requests
        line(resource=""),  # /version
        line()[:-40] + b"\n",
        line()[:200] + line(),  # killed, and started again
        b"\n",
    ],
)
def test_no_call(event: bytes) -> None:
    assert select_calls([event]) == set()


@given(st.lists(st.sampled_from([line(name="n1"), line(name="n2"), line(verb="list"), line(agent="curl")])))
def test_of_many_calls_the_distinct_ones_stay(events: list[bytes]) -> None:
    calls = select_calls(events)
    assert calls == select_calls([*events, *reversed(events)])
    assert len(calls) <= 2


def test_a_cluster_leaves_its_calls_where_the_environment_wants_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, kept = tmp_path / "c0ffee", tmp_path / "build" / "session"
    cluster.mkdir()
    monkeypatch.setenv(CALLS_VARIABLE, str(kept))
    flags = dict(flag.split("=") for flag in audit_flags(cluster))
    assert json.loads(Path(flags["--audit-policy-file"]).read_text())["kind"] == "Policy"
    log = Path(flags["--audit-log-path"])
    log.write_bytes(line())
    log.with_name("audit-2026-01-01T00-00-00.000.log").write_bytes(line(verb="list"))

    keep_calls("c0ffee", cluster)
    whole = load_calls(kept)
    assert {call.verb for call in whole} == {"get", "list"}

    # Another one cleans up, too, and sees what the first has left of the log.
    log.unlink()
    keep_calls("c0ffee", cluster)
    assert load_calls(kept) == whole
    assert [path.name for path in kept.iterdir()] == ["c0ffee.json"]


def test_nothing_is_logged_or_kept_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CALLS_VARIABLE, raising=False)
    (tmp_path / "audit.log").write_bytes(line())
    assert audit_flags(tmp_path) == []
    keep_calls("c0ffee", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["audit.log"]


def test_a_cluster_goes_even_if_its_calls_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    monkeypatch.setenv(CALLS_VARIABLE, str(occupied))
    (tmp_path / "audit.log").write_bytes(line())
    keep_calls("c0ffee", tmp_path)
    assert load_calls(tmp_path / "absent") == set()

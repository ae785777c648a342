"""The indexes agree, after any changes in any order, with a look at everything."""

from hypothesis import given
from hypothesis import strategies as st

from coil.crd.builtin import PodIP, PodStatus
from coil.crd.egress_gateway_policy import AppliedTo, EgressGatewayPolicy, EgressGatewayPolicySpec
from coil.crd.meta import LabelSelector, ObjectMeta, Requirement
from coil.crd.resource import object_key
from coil_egress_controller.eip.endpoint_index import EIP_PODS, POD_INDEXERS, EipPod, EndpointIndex, LabelMeta
from tests.coil.kube.memory_api import MemoryApi
from tests.coil_egress_controller.scene import MemoryCache

LABELS = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["a", "b"]))
SPACES = st.sampled_from(["s", "t"])
SELECTORS = st.none() | st.builds(
    lambda labels, exists: LabelSelector(
        match_labels=labels,
        match_expressions=(Requirement(key="tier", operator="Exists"),) if exists else (),
    ),
    LABELS,
    st.booleans(),
)
PODS = st.builds(
    lambda name, namespace, labels, ip: EipPod(
        metadata=LabelMeta(name=name, namespace=namespace, labels=labels, uid=ip or "none"),
        status=PodStatus(pod_ips=(PodIP(ip=ip),) if ip else ()),
    ),
    st.sampled_from(["x", "y", "z"]),
    SPACES,
    LABELS,
    st.sampled_from(["10.0.0.1", "10.0.0.2", ""]),
)
POLICIES = st.builds(
    lambda name, namespace, selector: EgressGatewayPolicy(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=EgressGatewayPolicySpec(applied_to=AppliedTo(pod_selector=selector)),
    ),
    st.sampled_from(["p", "q"]),
    SPACES,
    SELECTORS,
)


class PodCache(MemoryCache[EipPod]):
    """Reads `pods`."""

    def __init__(self, pods: dict[str, EipPod]) -> None:
        super().__init__(MemoryApi(), EIP_PODS)
        self._pods = pods

    def by_index(self, index: str, value: str) -> list[EipPod]:
        assert index in POD_INDEXERS
        return [pod for pod in self._pods.values() if pod.metadata.namespace == value]


@given(st.lists(st.tuples(PODS | POLICIES, st.booleans()), max_size=30))
def test_the_endpoints_of_each_policy(changes: list[tuple[EipPod | EgressGatewayPolicy, bool]]) -> None:
    pods: dict[str, EipPod] = {}
    policies: dict[str, EgressGatewayPolicy] = {}
    index = EndpointIndex(PodCache(pods))
    for item, stays in changes:
        key = object_key(item.metadata)
        before = {policy: index.endpoints(policy) for policy in policies}
        if isinstance(item, EipPod):
            old = pods.pop(key, None)
            if stays:
                pods[key] = item
            told = set(index.change_pod(old, pods.get(key)))
            changed = {policy for policy in policies if index.endpoints(policy) != before[policy]}
            assert changed <= told
        else:
            was = policies.pop(key, None)
            if stays:
                policies[key] = item
            index.change_policy(was, policies.get(key))
        for name, policy in policies.items():
            selector = policy.spec.applied_to.pod_selector
            expected = {
                pod.metadata.name
                for pod in pods.values()
                if selector is not None
                and pod.metadata.namespace == policy.metadata.namespace
                and pod.status.pod_ips
                and selector.selects(pod.metadata.labels)
            }
            assert {endpoint.pod_name for endpoint in index.endpoints(name)} == expected

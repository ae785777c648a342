"""Whether the Node allows more pods than can have addresses. Pure.

The scheduler goes by the kubelet's limit of pods (`status.allocatable.pods`) and knows nothing of addresses. Where the
limit is beyond what the instance's interfaces can have, pods are sent to the node that wait there for ever.
"""


def explain_excess(*, pods_limit: int | None, ip_max: int | None) -> str | None:
    """By how much the Node's limit of pods is beyond the addresses that they can have at most; None if it is not, or
    one of the two is not known.
    """
    if pods_limit is None or ip_max is None or pods_limit <= ip_max:
        return None
    return f"the Node allows {pods_limit} pods, but at most {ip_max} can have an address: lower the kubelet's maxPods"

"""What EC2 has, compared with the pods: at every change, in the moment in which it takes place, and at rest."""

from collections.abc import Collection, Iterator

from integration.aws.churn.register import PodRegister, WiredPod
from integration.aws.ec2_state import Ec2State, read_state
from integration.aws.strict_ec2 import StrictEc2


class AccountWatch:
    """A context manager: to the end of it, each change of EC2's is compared before whoever asked for it is answered."""

    def __init__(self, ec2: StrictEc2, register: PodRegister) -> None:
        self._ec2 = ec2
        self._register = register
        self._before = read_state(ec2)
        self.given_back = 0
        """Addresses that EC2 was asked to take, or that went with an interface."""

    def __enter__(self) -> "AccountWatch":
        self._ec2.watchers.append(self._compare)
        return self

    def __exit__(self, *_: object) -> None:
        self._ec2.watchers.remove(self._compare)

    def enter(self, pod: WiredPod) -> None:
        """It is up from now on; that it may have its address was for EC2 to say before."""
        self._register.enter(pod)
        with self._ec2.still():
            self._compare()

    def _compare(self) -> None:
        # With EC2's lock. A pod that enters meanwhile looks by itself.
        state = read_state(self._ec2)
        owners = {address: each.instance for each in state.interfaces.values() for address in each.addresses}
        for pod in self._register.pods():
            if owners.get(pod.address) != pod.instance:
                self._register.accuse(f"EC2 has taken {pod.address} from {pod}, which is up")
        for pod in self._register.cooling():
            if owners.get(pod.address) != pod.instance:
                self._register.accuse(f"EC2 has got {pod.address} back, which was {pod}'s and is cooling down")
        before = {address for each in self._before.interfaces.values() for address in each.addresses}
        self.given_back += len(before - owners.keys())
        self._before = state


def find_account_faults(state: Ec2State, instances: Collection[str], *, warm: int) -> Iterator[str]:
    """What is wrong at rest, where each of the instances is to have so many addresses for pods that do not exist."""
    for each in state.interfaces.values():
        if not each.instance:
            yield f"{each.id} is attached to nothing"
        elif not each.goes_with_instance:
            yield f"{each.id} would outlive {each.instance}"
    for instance in instances:
        found = sum(len(each.addresses) - 1 for each in state.attached_to(instance))
        if found != warm:
            yield f"{instance} has {found} addresses assigned, and {warm} are wanted"

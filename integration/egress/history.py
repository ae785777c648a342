"""One pod's life beside its Egresses, as a seed says: what comes, goes and is out of reach, and in which order.

The pod's annotation stands from its creation to its end, so nothing that its Egresses are for may leave with the pod's
own address at any time. What happens does not wait for anything to become ready, but that once the pod is made to run:
some of it happens before, and some after.
"""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from integration.egress.api import ApiError
from integration.egress.capture import Capture, Packet
from integration.egress.conversation import DISCARD_PORT, DatagramSender
from integration.egress.external_host import ADDRESSES
from integration.egress.pod import RunningPod
from integration.egress.station import PATIENCE
from integration.egress.world import EGRESSES, EVERYTHING, World
from integration.patience import wait_until

HALVES = ("0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1")
WAITING, RUNNING = 5, 7
"""Events at most, before it is made to run and after."""
LONGEST_PAUSE = 0.6
LONGEST_SILENCE = 2.5


@dataclass
class Outcome:
    """What became of a pod. `leaked` are packets with its own address at the host outside."""

    seed: int
    events: list[str] = field(default_factory=list)
    sent: int = 0
    refused: int = 0
    leaked: list[Packet] = field(default_factory=list)

    def __str__(self) -> str:
        pod = f"the pod sent {self.sent}, refused {self.refused}"
        return f"history {self.seed}: {', '.join(self.events)}; {pod}; {len(self.leaked)} packets leaked"


class History:
    """`play` it once. With `mortal` False, coild lives through it."""

    def __init__(self, world: World, seed: int, *, mortal: bool = True) -> None:
        self._world = world
        self._mortal = mortal
        self._random = random.Random(seed)
        self._dice = self._random
        """An event's own: how often it draws depends on what it finds."""
        self._outcome = Outcome(seed)
        self._names = [f"life-{seed}-{number}" for number in range(self._random.choice((1, 1, 2)))]
        self._station = self._random.randrange(len(world.stations))
        self._uid = ""
        self._pod: RunningPod | None = None
        self._sender: DatagramSender | None = None

    def play(self) -> Outcome:
        """Everything of it is gone when it returns."""
        events: list[Callable[[], None]] = [
            self._create_egress,
            self._create_egress,
            self._delete_egress,
            self._change_destinations,
            self._silence,
            self._delete_router,
            *((self._kill_coild, self._start_coild) if self._mortal else ()),
        ]
        with ExitStack() as stack:
            outside = stack.enter_context(Capture(self._world.external.netns, keep=_is_ours))
            stack.callback(self._clean_up)
            stack.callback(self._ensure_coild)
            self._stack = stack
            for event in self._random.choices((self._create_egress, self._delete_egress), k=self._random.randrange(2)):
                self._happen(event)
            self._uid = stack.enter_context(self._world.pod_object(*self._names, station=self._station))
            self._outcome.events.append("create the pod")
            for beside, most in ((events, WAITING), ([*events, self._annotate], RUNNING)):
                for event in self._random.choices(beside, k=self._random.randint(2, most)):
                    self._happen(event)
                    self._look()
                self._serve()
            assert self._sender is not None
            self._outcome.sent = self._sent()
            self._outcome.refused = self._sender.refusals.total()
        own = set(self._pod.addresses.values()) if self._pod is not None else set()
        self._outcome.leaked = outside.select(lambda packet: packet.source in own)
        return self._outcome

    # --- what happens

    def _create_egress(self) -> None:
        self._apply(self._dice.choice(self._names))

    def _apply(self, name: str) -> None:
        spec = {"destinations": list(EVERYTHING), "replicas": 1}
        document = {"apiVersion": "coil.cybozu.com/v2", "kind": "Egress", "metadata": {"name": name}, "spec": spec}
        with suppress(ApiError):
            self._world.api.create(EGRESSES, document)

    def _delete_egress(self) -> None:
        with suppress(ApiError):
            self._world.api.delete(f"{EGRESSES}/{self._dice.choice(self._names)}")

    def _change_destinations(self) -> None:
        """Other networks, and the same addresses."""
        spec = {"destinations": list(self._dice.choice((HALVES, EVERYTHING)))}
        with suppress(ApiError):
            self._world.api.patch(f"{EGRESSES}/{self._dice.choice(self._names)}", {"spec": spec})

    def _annotate(self) -> None:
        """The pod names some of its Egresses, which may not be there."""
        assert self._pod is not None
        names = self._dice.sample(self._names, k=self._dice.randint(1, len(self._names)))
        self._world.annotate(self._pod, *names)

    def _kill_coild(self) -> None:
        coild = self._world.stations[self._station].coild
        if coild.process.poll() is None:
            coild.kill()

    def _start_coild(self) -> None:
        coild = self._world.stations[self._station].coild
        if coild.process.poll() is not None:
            coild.start()

    def _silence(self) -> None:
        """The API server is out of the node's reach for a while."""
        with self._world.stations[self._station].cut_off():
            time.sleep(self._dice.uniform(0, LONGEST_SILENCE))

    def _delete_router(self) -> None:
        """Another one takes its place."""
        if routers := self._routers():
            with suppress(ApiError):
                self._world.api.delete(self._dice.choice(routers).path, grace=0)

    # --- beside it

    def _happen(self, event: Callable[[], None]) -> None:
        self._dice = random.Random(self._random.random())
        pause = self._dice.uniform(0, LONGEST_PAUSE)
        self._outcome.events.append(event.__name__.strip("_").replace("_", " "))
        event()
        time.sleep(pause)

    def _look(self) -> None:
        """As the kubelet; a pod that has started sends from then on."""
        self._world.kubelet.sync()
        if self._pod is None and (pod := self._world.pod(self._uid)) is not None:
            self._pod = pod
            self._outcome.events.append("(it starts)")
            self._sender = self._stack.enter_context(DatagramSender(pod, *ADDRESSES.values()))

    def _ensure_coild(self) -> None:
        if self._mortal:
            self._world.stations[self._station].coild.ensure_running()

    def _routers(self) -> list[RunningPod]:
        label = "app.kubernetes.io/instance"
        pods = self._world.kubelet.pods
        return [pod for pod in pods if pod.document["metadata"].get("labels", {}).get(label) in self._names]

    def _serve(self) -> None:
        """Whatever has happened, the pod runs and sends once its Egresses are there."""
        self._ensure_coild()
        before = self._sent()

        def is_served() -> bool:
            for name in self._names:
                self._apply(name)  # again, where one that was deleted had not gone yet
            self._look()
            return self._sent() > before

        wait_until(is_served, what="all there is again, and the pod sends", timeout=PATIENCE)

    def _sent(self) -> int:
        return 0 if self._sender is None else self._sender.sent.total()

    def _clean_up(self) -> None:
        for name in self._names:
            with suppress(ApiError):
                self._world.api.delete(f"{EGRESSES}/{name}")
        self._world.kubelet.wait_until(lambda: not self._routers(), what="the routers are gone")


def _is_ours(packet: Packet) -> bool:
    return packet.port == DISCARD_PORT

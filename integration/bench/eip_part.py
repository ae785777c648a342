"""The figures of the EIP gateway: how long a lost gateway node is missed, and what a thousand policies cost a node's
kernel, its agent and the API server, beside iptables and ipset in the public project's shape.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Final

from integration.bench.eip_crowd import PODS, Crowd
from integration.bench.eip_failover import take_outages
from integration.bench.eip_hostile import POLICIES as HOSTILE_POLICIES
from integration.bench.eip_hostile import RANGES, take_delays
from integration.bench.eip_node import CARRIER, ORDINARY, NodeTrial, open_stage
from integration.bench.eip_passage import Passage, Traffic, take_turns
from integration.bench.eip_side import PEER, OurSide, PeerSide, Side, peer_obstacle
from integration.bench.eip_slice import OTHERS, take_slice_trial
from integration.bench.figure import Better, Figure, Reading
from integration.bench.part import Part
from integration.bench.room import require_room
from integration.bench.sample import median, paired_ratios, percentile, spread
from integration.netns.netns import Netns, create_netns

MEDIAN = Figure("eip.failover.median_s", "s")
P95 = Figure("eip.failover.p95_s", "s")
LEADER_MEDIAN = Figure("eip.failover_leader_lost.median_s", "s")
LEADER_MOST = Figure("eip.failover_leader_lost.p100_s", "s")
FULL = Figure("eip.nft_full_ms.p1000", "ms", peer=PEER)
CHANGE = Figure("eip.nft_change_ms.p1000", "ms", peer=PEER)
HOSTILE = Figure("eip.lease_refresh_delay_ms.hostile", "ms")
SIZES: Final = (1, 100, 1000)
FORWARD = {
    (traffic, size): Figure(
        f"eip.forward_{'' if traffic is Traffic.ESTABLISHED else 'new_'}pps.p{size}", "1/s", Better.HIGHER, PEER
    )
    for traffic in Traffic
    for size in SIZES
}
START = Figure("eip.agent_start_s.p1000", "s")
START_CPU = Figure("eip.agent_start_cpu_s.p1000", "s")
START_BYTES = Figure("eip.agent_start_bytes.p1000", "bytes")
RSS = Figure("eip.agent_rss_mb.p1000", "MB")
POLICY_CHANGE = Figure("eip.agent_policy_change_ms.p1000", "ms")
POLICY_BYTES = Figure("eip.watch_bytes_per_policy_change", "bytes")
CHURN = Figure("eip.agent_churn_1000_pods_s.p1000", "s")
CHURN_BYTES = Figure("eip.watch_bytes_per_1000_pods", "bytes")
WRITES = Figure("eip.slice_writes_per_1000_pods", "writes")
LAG = Figure("eip.slice_lag_s.1000_pods", "s")

_POLICIES: Final = 1000
_TRIALS: Final = 20
_LOADS: Final = 5
_CHANGES: Final = 20


def measure_failover(_wanted: Collection[Figure]) -> Iterator[Reading]:
    require_room()
    trials = list(take_outages(_TRIALS))
    outages = [outage for trial in trials for outage in trial]
    note = (
        f"{len(trials)} losses of power (link down, agent killed), default settings; each time the outage of an IPv4 "
        f"and of an IPv6 flow of 100 questions a second, from the last answer to the next; {spread(outages)}"
    )
    yield Reading(figure=MEDIAN, value=median(outages), runs=len(trials), note=note)
    yield Reading(figure=P95, value=percentile(outages, 95), runs=len(trials), note=note)


def measure_failover_with_leader(_wanted: Collection[Figure]) -> Iterator[Reading]:
    require_room()
    trials = list(take_outages(_TRIALS, with_leader=True))
    outages = [outage for trial in trials for outage in trial]
    note = (
        f"{len(trials)} losses of power together with the controller that leads, one of two, which is killed; else "
        f"as eip.failover; {spread(outages)}"
    )
    yield Reading(figure=LEADER_MEDIAN, value=median(outages), runs=len(trials), note=note)
    yield Reading(figure=LEADER_MOST, value=max(outages), runs=len(trials), note=note)


def measure_tables(_wanted: Collection[Figure]) -> Iterator[Reading]:
    require_room()
    _require_peer()
    crowd = Crowd(policies=_POLICIES)
    with ExitStack() as stack:
        ours = OurSide(stack.enter_context(_netns()), crowd)
        theirs = PeerSide(stack.enter_context(_netns()), crowd)
        loads: dict[Side, list[float]] = {ours: [], theirs: []}
        changes: dict[Side, list[float]] = {ours: [], theirs: []}
        kernel: list[float] = []
        kernel_changes: list[float] = []
        for _ in range(_LOADS):
            for side in (ours, theirs):
                side.clear()
                loads[side].append(side.load() * 1000)
            kernel.append(ours.kernel_seconds * 1000)
        for number in range(0, _POLICIES, _POLICIES // _CHANGES):
            for back in (False, True):
                for side in (ours, theirs):
                    changes[side].append(side.change(number, back=back) * 1000)
                kernel_changes.append(ours.kernel_seconds * 1000)
    shape = f"{_POLICIES} policies carried here with {PODS} pods each, as many by another gateway"
    yield _compared(
        FULL,
        loads[ours],
        loads[theirs],
        note=f"{shape}; from the filled book, {median(kernel):.0f} ms of it in library and kernel, "
        "against two programs that are given ready texts",
    )
    yield _compared(
        CHANGE,
        changes[ours],
        changes[theirs],
        note=f"another address, one of four destinations and one of {PODS} pods of one policy; "
        f"{median(kernel_changes):.2g} ms in library and kernel",
    )


def measure_hostile(_wanted: Collection[Figure]) -> Iterator[Reading]:
    require_room()
    with _netns() as netns:
        delays = asyncio.run(take_delays(netns))
    taken = [seconds * 1000 for seconds in delays.refreshes]
    yield Reading(
        figure=HOSTILE,
        value=max(taken),
        runs=len(taken),
        note=f"the longest of all, while one tenant changes {HOSTILE_POLICIES} policies with {RANGES} destinations "
        f"each: {len(delays.changes)} changes of up to {max(delays.changes)} elements; {spread(taken)}",
    )


def measure_forwarding(wanted: Collection[Figure]) -> Iterator[Reading]:
    require_room()
    _require_peer()
    for size in SIZES:
        traffics = [traffic for traffic in Traffic if FORWARD[traffic, size] in wanted]
        if traffics:
            yield from _measure_forwarding(Crowd(policies=size), traffics)


def measure_agent(_wanted: Collection[Figure]) -> Iterator[Reading]:
    require_room()
    carrier, ordinary = asyncio.run(_take_node_trials())
    trials = (("the gateway that carries them all", carrier), ("a node with one pod of each", ordinary))

    def worse(figure: Figure, read: Callable[[NodeTrial], float], more: Callable[[NodeTrial], str]) -> Reading:
        told = "; ".join(f"{name}: {read(trial):.4g} {figure.unit}, {more(trial)}" for name, trial in trials)
        value = max(read(trial) for _, trial in trials)
        return Reading(figure=figure, value=value, runs=1, note=told)

    yield worse(
        START,
        lambda trial: trial.first.seconds,
        lambda trial: (
            f"again after kill -9 {trial.again.seconds:.3g} s"
            + (f", all EIPs on the device after {trial.first.carries:.3g} s" if trial.first.carries else "")
        ),
    )
    yield worse(
        START_CPU,
        lambda trial: trial.first.cpu_seconds,
        lambda trial: f"again {trial.again.cpu_seconds:.3g} s, idle {trial.idle_cpu_percent:.2g} %",
    )
    yield worse(
        START_BYTES, lambda trial: trial.first.received, lambda trial: f"idle {trial.idle_per_second:.0f} a second"
    )
    yield worse(RSS, lambda trial: trial.first.rss_mb, lambda trial: f"at most {trial.first.peak_mb:.0f} MB")
    yield worse(
        POLICY_CHANGE,
        lambda trial: median([change.lag for change in trial.changes]) * 1000,
        lambda trial: (
            f"of {len(trial.changes)} with {_cpu([change.cpu_seconds for change in trial.changes])}, from the API "
            "server's answer to the kernel"
        ),
    )
    yield worse(
        POLICY_BYTES,
        lambda trial: median([change.received for change in trial.changes]),
        lambda _trial: "for one more destination",
    )
    yield worse(
        CHURN,
        lambda trial: trial.scattered.lag,
        lambda trial: (
            f"one pod of each policy, from the API server's last answer ({trial.scattered.writing:.2g} s of writes) to "
            f"the kernel, {trial.scattered.cpu_seconds:.2g} s CPU; of ten policies a hundred: {trial.rolled.lag:.2g} s "
            f"({trial.rolled.writing:.2g} s), {trial.rolled.cpu_seconds:.2g} s CPU"
        ),
    )
    yield worse(
        CHURN_BYTES,
        lambda trial: trial.scattered.received,
        lambda trial: f"one pod of each policy; of ten policies a hundred: {trial.rolled.received:.0f}",
    )


def measure_slices(_wanted: Collection[Figure]) -> Iterator[Reading]:
    require_room()
    trial = asyncio.run(take_slice_trial(policies=_POLICIES))
    rolled, gone, scattered = trial.rolled, trial.gone, trial.scattered
    yield Reading(
        figure=WRITES,
        value=rolled.writes,
        runs=1,
        note=f"all pods of one policy replaced, one after the other, in {rolled.seconds:.1f} s; all deleted in "
        f"{gone.seconds:.1f} s: {gone.writes}; one pod of each other policy replaced: {scattered.writes}; "
        f"controller {rolled.cpu_seconds:.2g}, {gone.cpu_seconds:.2g}, {scattered.cpu_seconds:.2g} s CPU, "
        f"{trial.rss_mb:.0f} MB; at its start {trial.start_writes} writes in {trial.start_seconds:.1f} s "
        f"({OTHERS} pods in each other policy)",
    )
    yield Reading(
        figure=LAG,
        value=median(trial.lone_lags),
        runs=len(trial.lone_lags),
        note="one pod more, one pod less, each from the API server's answer to the slice: the whole window in which "
        f"changes are gathered, {spread(trial.lone_lags)}; after the last pod of a crowd what is left of one: all "
        f"replaced {rolled.lag:.2g} s, deleted {gone.lag:.2g} s, of all policies {scattered.lag:.2g} s",
    )


def _measure_forwarding(crowd: Crowd, traffics: Sequence[Traffic]) -> Iterator[Reading]:
    with ExitStack() as stack:
        passages = [stack.enter_context(closing(Passage(crowd))) for _ in range(3)]
        mine, peers, _ = passages
        OurSide(mine.gateway, crowd).load()
        PeerSide(peers.gateway, crowd).load()
        for traffic in traffics:
            rounds: list[list[float]] = []
            for rates in take_turns(passages, traffic):
                rounds.append(rates)
                for passage in (mine, peers):
                    passage.check()
            ours, theirs, plain = zip(*rounds, strict=True)
            kind = "of 32 known connections" if traffic is Traffic.ESTABLISHED else "each of a new connection"
            yield _compared(
                FORWARD[traffic, crowd.policies],
                ours,
                theirs,
                note=f"datagrams {kind}, sent and forwarded by one core, from pods beside the gateway; through plain "
                f"forwarding without any connection tracking {median(plain):.0f}",
            )


async def _take_node_trials() -> tuple[NodeTrial, NodeTrial]:
    async with open_stage(policies=_POLICIES) as stage:
        ordinary = await stage.take_trial(ORDINARY)
        return await stage.take_trial(CARRIER), ordinary


def _compared(figure: Figure, ours: Sequence[float], theirs: Sequence[float], *, note: str) -> Reading:
    return Reading(
        figure=figure,
        value=median(ours),
        peer_value=median(theirs),
        runs=len(ours),
        note=f"{note}; runs {spread(ours)} against {spread(theirs)}; neighbouring runs have the ratio "
        f"{median(paired_ratios(ours, theirs)):.2f}",
    )


def _cpu(seconds: Sequence[float]) -> str:
    return f"{median(seconds) * 1000:.0f} ms CPU each"


@contextmanager
def _netns() -> Iterator[Netns]:
    [netns] = create_netns(1)
    try:
        yield netns
    finally:
        netns.delete()


def _require_peer() -> None:
    if obstacle := peer_obstacle():
        raise RuntimeError(obstacle)


PARTS = (
    Part("eip.failover", (MEDIAN, P95), measure_failover),
    Part("eip.failover_leader_lost", (LEADER_MEDIAN, LEADER_MOST), measure_failover_with_leader),
    Part("eip.tables", (FULL, CHANGE), measure_tables),
    Part("eip.hostile", (HOSTILE,), measure_hostile),
    Part("eip.forward", tuple(FORWARD.values()), measure_forwarding),
    Part(
        "eip.agent",
        (START, START_CPU, START_BYTES, RSS, POLICY_CHANGE, POLICY_BYTES, CHURN, CHURN_BYTES),
        measure_agent,
    ),
    Part("eip.slices", (WRITES, LAG), measure_slices),
)

"""The measured side of the egress figures, on a kernel that has Foo-over-UDP:

    python -m integration.bench.egress_guest API ADMIN-KUBECONFIG AGENT-KUBECONFIG COILD-KUBECONFIG RESULTS SECTION…

Writes RESULTS/result.json after each section (`adds`, `paths`, `crowd`), RESULTS/agent.log and RESULTS/coild.log.
"""

import asyncio
import os
import re
import sys
from ipaddress import IPv4Address
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from integration.bench.bare_client import BareClient
from integration.bench.egress_add import AddTrial
from integration.bench.egress_agent import RouterAgent
from integration.bench.egress_crowd import CrowdTrial
from integration.bench.egress_result import ADDS, CROWD, PATHS, RESULT, PathSamples, Result, TrafficPaths, encode
from integration.bench.egress_scene import Scene, open_scene
from integration.bench.path_rounds import take_rounds

_ROUNDS: Final = 15
"""Many and short: whatever else the machine does then falls on all paths alike."""
_DATAGRAMS: Final = 100


async def measure(arguments: list[str]) -> None:
    api, admin, account, coild, folder, *sections = arguments
    results = Path(folder)
    result = Result(place=describe_place())
    async with BareClient(Path(admin), connections=1) as client:
        if ADDS in sections:
            adds = await AddTrial(client, kubeconfig=Path(coild), folder=results).run()
            result = msgspec.structs.replace(result, adds=adds)
            _write(results, result)
        if not {PATHS, CROWD} & {*sections}:
            return
        with open_scene(IPv4Address(api)) as scene:
            await scene.connect_client()
            agent = RouterAgent(
                scene.router.netns,
                addresses=[scene.router_address],
                kubeconfig=Path(account),
                log=results / "agent.log",
            )
            with agent:
                trial = CrowdTrial(client, agent=agent, scene=scene)
                if PATHS in sections:
                    await trial.join()
                    result = msgspec.structs.replace(result, paths=measure_paths(scene))
                    await trial.leave()
                    _write(results, result)
                if CROWD in sections:
                    result = msgspec.structs.replace(result, crowd=await trial.run())
                    _write(results, result)


def measure_paths(scene: Scene) -> TrafficPaths:
    """All paths in turns."""
    measured = take_rounds(scene.paths, rounds=_ROUNDS, datagrams=_DATAGRAMS)
    samples = {
        name: PathSamples(
            upload_gbits=tuple(each.upload_gbits for each in rounds),
            download_gbits=tuple(each.download_gbits for each in rounds),
            rtt_ms=tuple(median(each.trips_ms) for each in rounds),
        )
        for name, rounds in measured.taken.items()
    }
    return TrafficPaths(
        tunnel=samples["tunnel"],
        plain=samples["plain"],
        direct=samples["direct"],
        megabytes=measured.megabytes,
        datagrams=_DATAGRAMS,
    )


def describe_place(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The kernel, and the processor as it calls itself; an emulated one says so."""
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    name = model.group(1).strip() if model else "unknown processor"
    emulated = ", emulated in software" if "TCG" in name else ""
    return f"Linux {os.uname().release} on {name}{emulated}"


def _write(folder: Path, result: Result) -> None:
    (folder / RESULT).write_bytes(encode(result))


if __name__ == "__main__":
    asyncio.run(measure(sys.argv[1:]))

"""`python -m integration.bench [NAME…]`: measure the figures whose name starts with a NAME, or all of them.

Prints a table and writes `build/bench.json`, which then holds exactly the figures that were asked for: a file with
figures of different days and trees would compare nothing. Exit code 0 when every one has a value, 1 when the reason
why not stands in its note, 2 for a name that no figure has.
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from integration.bench import (
    aws_node_part,
    aws_part,
    aws_traffic_part,
    cli_part,
    cni_part,
    coild_part,
    egress_part,
    eip_add_part,
    eip_part,
    helm_part,
    host_port_part,
    informer_part,
    ipam_part,
    neutron_node_part,
    neutron_part,
    plugin_part,
    source_part,
)
from integration.bench.figure import Figure, Reading, select_figures
from integration.bench.part import take_readings
from integration.bench.report import render_table, write_json
from integration.bench.room import furnish_room, inside_room, room_obstacle, run_in_room

_PARTS = (
    *informer_part.PARTS,
    cni_part.PART,
    host_port_part.PART,
    plugin_part.PART,
    source_part.PART,
    coild_part.PART,
    coild_part.IMPORT_PART,
    *ipam_part.PARTS,
    egress_part.PART,
    *eip_part.PARTS,
    eip_add_part.PART,
    *aws_part.PARTS,
    aws_node_part.PART,
    aws_traffic_part.PART,
    neutron_part.PART,
    neutron_node_part.PART,
    helm_part.PART,
    *cli_part.PARTS,
)
_RESULT = Path(__file__).parents[2] / "build" / "bench.json"


def main(arguments: list[str]) -> int:
    parser = ArgumentParser("bench", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the start of a figure's name")
    names: list[str] = parser.parse_args(arguments).names
    try:
        wanted = select_figures((figure for part in _PARTS for figure in part.figures), names)
    except ValueError as error:
        parser.error(str(error))
    if inside_room():
        furnish_room()
    elif not room_obstacle():
        _fetch_for(wanted)
        return run_in_room(arguments)
    readings = _take_all(wanted)
    write_json(_RESULT, readings)
    print(render_table(readings))
    print(f"\nwritten to {_RESULT}")
    return 0 if all(reading.value is not None for reading in readings) else 1


def _fetch_for(wanted: tuple[Figure, ...]) -> None:
    for part in _PARTS:
        if part.fetch is not None and any(figure in wanted for figure in part.figures):
            part.fetch()


def _take_all(wanted: tuple[Figure, ...]) -> list[Reading]:
    readings: list[Reading] = []
    for part in _PARTS:
        if mine := [figure for figure in part.figures if figure in wanted]:
            print(f"measuring {part.name}: {len(mine)} figures …", file=sys.stderr, flush=True)
            readings += take_readings(part, mine)
    return readings


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

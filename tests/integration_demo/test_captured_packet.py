from dataclasses import replace

from integration.demo.captured_packet import CapturedPacket, find_wrong_ways

QUESTION = CapturedPacket(link="eth1", source="10.1.0.5", destination="10.1.1.5", about="the question")
ANSWER = CapturedPacket(link="eth1", source="10.1.1.5", destination="10.1.0.5", about="the answer")


def test_ports_and_repetitions_are_nobodys_mistake() -> None:
    seen = [replace(QUESTION, source_port=4711, port=53), QUESTION, ANSWER]
    assert find_wrong_ways(seen, [replace(QUESTION, about=""), ANSWER]) == []


def test_a_packet_by_another_link_is_one() -> None:
    assert find_wrong_ways([QUESTION, replace(ANSWER, link="eth0")], [QUESTION, ANSWER]) == [
        "a packet went from 10.1.1.5 to 10.1.0.5 by eth0, which should not have",
        "no packet went from 10.1.1.5 to 10.1.0.5 by eth1",
    ]


def test_a_row_has_the_ports() -> None:
    row = replace(QUESTION, source_port=4711, port=53).row
    assert row == ("eth1", "10.1.0.5:4711", "10.1.1.5:53", "the question")

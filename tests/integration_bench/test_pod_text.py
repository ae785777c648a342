import json
from typing import Any

import pytest

from integration.bench.pod_text import PodText, render_event, render_page, render_pod

PODS = [render_pod(number) for number in range(25)]


def pages(limit: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    token = ""
    while not found or token:
        found.append(json.loads(render_page(PODS, version=500, limit=limit, token=token)))
        token = found[-1]["metadata"].get("continue", "")
    return found


def names(page: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in page["items"]]


@pytest.mark.parametrize(("limit", "sizes"), [(10, [10, 10, 5]), (25, [25]), (0, [25]), (5, [5] * 5), (99, [25])])
def test_pages_follow_on_from_each_other(limit: int, sizes: list[int]) -> None:
    found = pages(limit)
    assert [len(page["items"]) for page in found] == sizes
    assert [name for page in found for name in names(page)] == names(pages(0)[0])
    assert {page["metadata"]["resourceVersion"] for page in found} == {"500"}


def test_a_page_says_how_many_remain() -> None:
    assert [page["metadata"].get("remainingItemCount") for page in pages(10)] == [15, 5, None]


def test_versions_in_a_list_are_distinct_and_not_above_the_lists() -> None:
    versions = [int(item["metadata"]["resourceVersion"]) for page in pages(10) for item in page["items"]]
    assert len(set(versions)) == len(PODS)
    assert max(versions) == 500


def test_an_invented_token_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        render_page(PODS, version=500, limit=10, token="bm90aGluZw==")


def test_events_apply_in_order_to_the_list() -> None:
    """Nothing is added twice, modified or deleted while absent; every version is newer than the one before."""
    present = set(names(pages(0)[0]))
    version = 500
    for number in range(250):
        event = json.loads(render_event(PODS, number, since=500))
        metadata = event["object"]["metadata"]
        assert int(metadata["resourceVersion"]) > version
        version = int(metadata["resourceVersion"])
        assert (metadata["name"] in present) == (event["type"] != "ADDED")
        (present.discard if event["type"] == "DELETED" else present.add)(metadata["name"])
    assert len(present) == len(PODS)


def test_an_event_is_one_line_with_a_whole_pod() -> None:
    line = render_event(PODS, 0, since=500)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line)["object"]["kind"] == "Pod"


def test_pods_are_as_large_as_real_ones_and_all_different() -> None:
    def size(pod: PodText) -> int:
        return len(pod.at(1_000_000))

    assert all(3200 < size(pod) < 3700 for pod in PODS)
    assert len({pod.head for pod in PODS}) == len(PODS)

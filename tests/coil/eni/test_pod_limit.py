import pytest

from coil.eni.pod_limit import explain_excess


@pytest.mark.parametrize(("pods_limit", "ip_max"), [(None, 18), (110, None), (None, None), (18, 18), (17, 18)])
def test_no_excess(pods_limit: int | None, ip_max: int | None) -> None:
    assert explain_excess(pods_limit=pods_limit, ip_max=ip_max) is None


@pytest.mark.parametrize(("pods_limit", "ip_max"), [(110, 18), (19, 18)])
def test_an_excess_is_told_with_both_numbers(pods_limit: int, ip_max: int) -> None:
    said = explain_excess(pods_limit=pods_limit, ip_max=ip_max)
    assert said is not None
    assert f"{pods_limit} pods" in said
    assert f"at most {ip_max} can" in said

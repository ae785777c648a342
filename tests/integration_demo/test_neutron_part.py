from integration.demo.neutron_part import render_announcement


def test_no_line_is_longer_than_a_terminal() -> None:
    text = render_announcement()
    assert max(map(len, text.splitlines())) <= 110
    assert "Octavia" in text

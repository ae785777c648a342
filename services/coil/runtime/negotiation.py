"""Which form of an answer a client wants, by its Accept header (RFC 9110, section 12.5.1). Pure."""

_HTML = ("text/html", "text/*")
_JSON = ("application/json", "application/*", "*/*")


def prefers_html(accept: str) -> bool:
    """True for a browser, which names HTML; False for curl, whose `*/*` means that anything will do, and for nonsense.

    Of the two that both are named, the one of greater weight, and HTML when they weigh the same.
    """
    weights = _parse(accept)
    html = _weight(weights, _HTML)
    return html > 0 and html >= _weight(weights, _JSON)


def _weight(weights: dict[str, float], names: tuple[str, ...]) -> float:
    return next((weights[name] for name in names if name in weights), 0.0)


def _parse(accept: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for entry in accept.lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        weight = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        try:
            weights[name] = float(weight)
        except ValueError:
            continue
    return weights

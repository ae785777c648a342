"""`python -m integration.bench.plain_coild FLAG…`: coild as it is where nothing is installed for development.

structlog imports rich and greenlet where it finds them, which is 3 MB and more.
"""

import sys

sys.modules["rich"] = sys.modules["greenlet"] = None  # type: ignore[assignment]  # what is None is not found

from coild.main import main  # noqa: E402 - what it imports is the point

if __name__ == "__main__":
    sys.exit(main())

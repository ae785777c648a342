"""`python -m coild`."""

import sys

from coild.main import main

sys.exit(main())

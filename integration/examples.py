"""Where Hypothesis takes its examples from.

By default they are the same in every run, so that the verdict on a commit is, too. With --hypothesis-profile=explore
they are new ones in each run; what is found then is printed as a line that repeats it.
"""

from typing import Final

from hypothesis import HealthCheck, settings

STEADY: Final = "steady"
EXPLORE: Final = "explore"


def load_profile() -> None:
    """Register both profiles and load the steady one; pytest loads the one on its command line after that."""
    # How long an example takes is a property of the machine and its other work, not of the code under test.
    common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
    settings.register_profile(STEADY, parent=common, derandomize=True)
    settings.register_profile(EXPLORE, parent=common)
    settings.load_profile(STEADY)

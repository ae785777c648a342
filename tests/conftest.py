"""What holds for every unit test."""

from hypothesis import HealthCheck, settings

# How long an example takes is a property of the machine and its other work, not of the code under test.
settings.register_profile(
    "coil", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("coil")

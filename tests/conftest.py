"""What holds for every unit test."""

from integration.examples import load_profile

load_profile()

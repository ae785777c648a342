"""Asked of this very process, and of one that is not there."""

import os
import time

import pytest

from integration.bench.process_state import cpu_seconds, proportional_megabytes, resident_megabytes


def test_what_is_in_memory_is_less_than_what_ever_was() -> None:
    assert 0 < resident_megabytes(os.getpid(), "VmRSS") <= resident_megabytes(os.getpid(), "VmHWM")
    assert proportional_megabytes(os.getpid()) > 0


def test_a_field_that_does_not_exist() -> None:
    with pytest.raises(LookupError, match="VmNothing"):
        resident_megabytes(os.getpid(), "VmNothing")


def test_time_is_that_of_the_process() -> None:
    assert abs(cpu_seconds(os.getpid()) - time.process_time()) < 1

"""Asked of this very process, and of one that is not there."""

import os
import time

import pytest

from integration.bench.process_state import (
    CpuTime,
    cpu_seconds,
    cpu_time,
    proportional_megabytes,
    resident_megabytes,
    thread_seconds,
)


def test_what_is_in_memory_is_less_than_what_ever_was() -> None:
    assert 0 < resident_megabytes(os.getpid(), "VmRSS") <= resident_megabytes(os.getpid(), "VmHWM")
    assert proportional_megabytes(os.getpid()) > 0


def test_a_field_that_does_not_exist() -> None:
    with pytest.raises(LookupError, match="VmNothing"):
        resident_megabytes(os.getpid(), "VmNothing")


def test_time_is_that_of_the_process() -> None:
    assert abs(cpu_seconds(os.getpid()) - time.process_time()) < 1


def test_the_threads_time_is_finer() -> None:
    before = thread_seconds(os.getpid())
    spent = time.thread_time()
    while time.thread_time() - spent < 0.002:
        pass
    assert thread_seconds(os.getpid()) - before >= 0.002


def test_time_is_divided_between_program_and_kernel() -> None:
    own = cpu_time(os.getpid())
    assert own.user > 0
    assert own.total == own.user + own.system
    assert CpuTime(3.0, 2.0) - CpuTime(1.0, 2.0) + CpuTime(0.0, 1.0) == CpuTime(2.0, 1.0)

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

TICK = 1 / os.sysconf("SC_CLK_TCK")
"""What the kernel counts a process's time in, in seconds."""


def test_what_is_in_memory_is_less_than_what_ever_was() -> None:
    assert 0 < resident_megabytes(os.getpid(), "VmRSS") <= resident_megabytes(os.getpid(), "VmHWM")
    assert proportional_megabytes(os.getpid()) > 0


def test_a_field_that_does_not_exist() -> None:
    with pytest.raises(LookupError, match="VmNothing"):
        resident_megabytes(os.getpid(), "VmNothing")


def test_time_is_that_of_the_process() -> None:
    before = time.process_time()
    read = cpu_seconds(os.getpid())
    # Of the program's time and of the kernel's, each is what whole ticks there are.
    assert before - 2 * TICK <= read <= time.process_time() + TICK


def test_the_threads_time_is_finer() -> None:
    before = thread_seconds(os.getpid())
    spent = time.thread_time()
    # The kernel may write it down as late as at its next tick.
    while thread_seconds(os.getpid()) - before < TICK / 5:
        assert time.thread_time() - spent < 100 * TICK


def test_time_is_divided_between_program_and_kernel() -> None:
    own = cpu_time(os.getpid())
    assert own.user > 0
    assert own.total == own.user + own.system
    assert CpuTime(3.0, 2.0) - CpuTime(1.0, 2.0) + CpuTime(0.0, 1.0) == CpuTime(2.0, 1.0)

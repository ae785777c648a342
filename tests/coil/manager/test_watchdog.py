"""The watchdog: the thread, and a real process whose event loop is stuck."""

import subprocess
import sys
import threading

from coil.manager.election import EXIT_LEASE_EXPIRED, Watchdog

PATIENCE = 60.0  # an upper bound for a thread or process to do what it does at once


class Fatal:
    """Records the reason, where the real one ends the process."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.reason = ""

    def __call__(self, reason: str) -> None:
        self.reason = reason
        self.called.set()


class SteppedClock:
    """A clock that tells when it was looked at."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looked = threading.Semaphore(0)

    def __call__(self) -> float:
        self.looked.release()
        return self.now

    def await_look(self) -> None:
        assert self.looked.acquire(timeout=PATIENCE)


def test_a_deadline_that_has_passed_is_fatal() -> None:
    fatal = Fatal()
    switch = Watchdog(clock=lambda: 100.0, fatal=fatal)
    switch.arm(99.0)
    assert fatal.called.wait(PATIENCE)
    assert "lease expires" in fatal.reason
    switch.close()


def test_a_deadline_that_passes_is_fatal_though_no_timer_ran_out() -> None:
    """The clock jumps, as it does over a suspension: the thread looks again by itself."""
    fatal = Fatal()
    clock = SteppedClock()
    switch = Watchdog(clock=clock, fatal=fatal)
    switch.arm(3600.0)
    clock.await_look()
    clock.now = 3601.0
    assert fatal.called.wait(PATIENCE)
    switch.close()


def test_a_deadline_that_is_moved_in_time_is_not_fatal() -> None:
    fatal = Fatal()
    clock = SteppedClock()
    switch = Watchdog(clock=clock, fatal=fatal)
    switch.arm(10.0)
    for _ in range(3):
        clock.await_look()
        switch.arm(clock.now + 20.0)
        clock.now += 15.0
        clock.await_look()
    assert not fatal.called.is_set()
    switch.close()


def test_disarmed_or_closed_it_never_strikes() -> None:
    fatal = Fatal()
    clock = SteppedClock()
    switch = Watchdog(clock=clock, fatal=fatal)
    switch.arm(10.0)
    clock.await_look()
    switch.disarm()
    clock.now = 100.0
    switch.close()
    assert not fatal.called.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "lease-watchdog"]


def test_a_process_with_a_stuck_event_loop_is_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.coil.manager.stuck_leader"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout == "leading\n"
    assert done.returncode == EXIT_LEASE_EXPIRED, done.stderr
    assert "the event loop has not stopped its leader's work" in done.stderr

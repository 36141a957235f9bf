"""What several tests use."""

import subprocess
import sys
import textwrap
import time

import pytest
import tenure


def wait_until(condition, what="the condition", seconds=60):
    """Waits, much longer than a busy machine needs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waiting until {what}"
        time.sleep(0.005)


@pytest.fixture(scope="session", autouse=True)
def keep_what_nobody_needs():
    """Values stay where a test does not purge them, also on a machine short of memory."""
    tenure.set_offer_delay(600)


@pytest.fixture
def python():
    """Runs a program in an interpreter of its own; returns what it printed."""

    def run(program, *, code=0, timeout=300, **options):
        command = [sys.executable, "-B", "-c", textwrap.dedent(program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout

    return run

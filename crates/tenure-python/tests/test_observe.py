import os
import subprocess
import sys

import pytest
import tenure


def test_residency_of_this_and_another_process():
    own = tenure.residency()
    assert own.rss > 1 << 20 and own.mapped >= own.rss
    assert own.rss_without_lazily_free is None or own.rss_without_lazily_free <= own.rss
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert tenure.residency(child.pid).rss > 0
    finally:
        child.communicate(b"\n")
    assert "rss=" in repr(own)


def test_residency_of_no_process_is_an_error():
    with pytest.raises(ProcessLookupError):
        tenure.residency(2**22 + 1)
    for pid in (-1, 2**32):
        with pytest.raises(ValueError, match="pid"):
            tenure.residency(pid)


def test_headroom_is_less_than_memory():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < tenure.headroom() <= memory


def test_stats_count_calls():
    before = tenure.stats()
    tenure.Mapping(1 << 16, populate=True).release()
    after = tenure.stats()
    assert after["populate_calls"] == before["populate_calls"] + 1
    assert after["munmap_bytes"] >= before["munmap_bytes"] + (1 << 16)


def test_level_is_one_of_three():
    assert tenure.pressure.level() in tenure.pressure.Level

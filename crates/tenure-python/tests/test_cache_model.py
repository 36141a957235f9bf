"""The cache beside a dict: whatever it returns is the value that was put in last."""

import pytest

pytest.importorskip("hypothesis", reason="python3 has no hypothesis")

import tenure  # noqa: E402
from hypothesis import settings, strategies as st  # noqa: E402
from hypothesis.stateful import RuleBasedStateMachine, rule  # noqa: E402

keys = st.one_of(st.integers(0, 5), st.sampled_from(["a", (1, 2), 0.0, -0.0, None]))
values = st.one_of(st.binary(max_size=9000), st.lists(st.integers()), st.text())


class CacheBesideDict(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.cache = tenure.Cache()
        self.model = {}

    @rule(key=keys, value=values)
    def insert(self, key, value):
        self.cache[key] = value
        self.model[key] = value

    @rule(key=keys)
    def look_up(self, key):
        missing = object()
        value = self.cache.get(key, missing)
        if value is not missing:
            assert value == self.model[key]

    @rule(key=keys)
    def remove(self, key):
        self.cache.pop(key, None)
        self.model.pop(key, None)
        assert key not in self.cache

    @rule()
    def purge(self):
        tenure.purge_all()

    @rule()
    def clear(self):
        self.cache.clear()
        self.model.clear()

    @rule()
    def compare(self):
        for key in self.cache:
            value = self.cache.get(key)
            assert value is None or value == self.model[key]


CacheBesideDict.TestCase.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, derandomize=True
)
TestCacheBesideDict = CacheBesideDict.TestCase

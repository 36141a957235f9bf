"""The shared cache beside a dict: whatever any of the objects with its name returns is the
value that was put in last."""

import os

import pytest

pytest.importorskip("hypothesis", reason="python3 has no hypothesis")
if not os.path.isdir("/dev/shm"):
    pytest.skip("there is no /dev/shm", allow_module_level=True)

import tenure  # noqa: E402
from hypothesis import given, settings, strategies as st  # noqa: E402
from hypothesis.stateful import RuleBasedStateMachine, rule  # noqa: E402
from tenure._shared_cache import _bytes_of, _key_of  # noqa: E402

parts = st.one_of(
    st.integers(), st.floats(), st.text(st.characters(), max_size=9), st.binary(max_size=9), st.none()
)
any_keys = st.recursive(parts, lambda it: st.lists(it, max_size=4).map(tuple), max_leaves=8)
keys = st.one_of(st.integers(0, 5), st.sampled_from(["a", (1, 2), (1, "2"), 0.0, -0.0, None]))
values = st.one_of(st.binary(max_size=9000), st.lists(st.integers()), st.text())
NAME = f"test.model.{os.getpid()}"


class SharedCacheBesideDict(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.caches = [tenure.SharedCache(NAME, max_bytes=1 << 20) for _ in range(2)]
        self.model = {}

    def teardown(self):
        self.caches[0].unlink()

    @rule(key=keys, value=values, by=st.integers(0, 1))
    def insert(self, key, value, by):
        self.caches[by][key] = value
        self.model[key] = value

    @rule(key=keys, by=st.integers(0, 1))
    def look_up(self, key, by):
        missing = object()
        value = self.caches[by].get(key, missing)
        if value is not missing:
            assert value == self.model[key]

    @rule(key=keys, by=st.integers(0, 1))
    def remove(self, key, by):
        value = self.caches[by].pop(key, None)
        assert value is None or value == self.model[key]
        self.model.pop(key, None)
        assert all(key not in it for it in self.caches)

    @rule()
    def clear(self):
        self.caches[0].clear()
        self.model.clear()

    @rule()
    def compare(self):
        for key, value in self.caches[1].items():
            assert value == self.model[key]


SharedCacheBesideDict.TestCase.settings = settings(
    max_examples=8, stateful_step_count=25, deadline=None, derandomize=True
)
TestSharedCacheBesideDict = SharedCacheBesideDict.TestCase


@settings(max_examples=80, deadline=None, derandomize=True)
@given(any_keys, any_keys)
def test_bytes_of_keys_are_equal_as_the_keys_are(one, other):
    for key in (one, other):
        encoded = _bytes_of(key)
        # No number is equal to itself that is none.
        assert _bytes_of(_key_of(encoded)) == encoded
    if one == other:
        assert _bytes_of(one) == _bytes_of(other)
    elif _bytes_of(one) == _bytes_of(other):
        assert "nan" in repr(one)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.binary(max_size=40))
def test_any_bytes_are_a_key_or_none(encoded):
    try:
        key = _key_of(encoded)
    except ValueError:
        return
    hash(key)
    assert _key_of(_bytes_of(key)) == key or "nan" in repr(key)

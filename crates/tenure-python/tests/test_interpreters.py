"""The package in sub-interpreters, imported again, and at the interpreter's end."""

import pytest

CREATE = """
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters

def create(*, own_gil):
    try:
        # Before Python 3.13; before 3.12 all share the GIL.
        return interpreters.create(isolated=own_gil)
    except TypeError:
        return interpreters.create("isolated" if own_gil else "legacy")

def error_of(id, code):
    # Until Python 3.12 an exception, later a description.
    try:
        return str(getattr(interpreters.run_string(id, code), "msg", None))
    except interpreters.RunFailedError as error:
        return str(error)
"""


@pytest.mark.parametrize("own_gil", [False, True])
def test_second_interpreter_is_refused_by_an_import_error(python, own_gil):
    python(
        CREATE
        + f"""
import tenure
cache = tenure.Cache()
cache["a"] = 1
id = create(own_gil={own_gil})
message = error_of(id, "import tenure")
assert "interpreter" in message and "tenure" in message and "PyO3" not in message, message
interpreters.destroy(id)
assert cache.get("a", 1) == 1
"""
    )


def test_first_interpreter_has_the_package_whichever_it_is(python):
    python(
        CREATE
        + """
id = create(own_gil=False)
assert error_of(id, "import tenure; tenure.Cache()['a'] = 1") == "None"
try:
    import tenure
except ImportError as error:
    assert "another interpreter" in str(error)
else:
    raise AssertionError("imported")
"""
    )


def test_heap_serves_sub_interpreters(python):
    python(
        CREATE
        + """
import tenure
tenure.heap.install()
for own_gil in (False, True):
    id = create(own_gil=own_gil)
    assert error_of(id, "kept = [bytearray(1 << 20) for _ in range(20)]") == "None"
    assert tenure.heap.stats()["in_use_bytes"] >= 20 << 20
    interpreters.destroy(id)
    assert tenure.heap.stats()["in_use_bytes"] < 20 << 20
"""
    )


def test_package_that_is_imported_again_lets_forks_go_on(python):
    python(
        """
        import importlib, os, signal, sys, tenure
        importlib.reload(tenure)
        first = tenure.Cache()
        first["a"] = 1
        for name in [it for it in sys.modules if it.startswith("tenure")]:
            del sys.modules[name]
        import tenure
        cache = tenure.Cache()
        cache["a"] = 2
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                assert len(cache) == len(first) == 0
                cache["a"] = first["a"] = 3
                grandchild = os.fork()
                if grandchild:
                    os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert first.get("a", 1) == 1 and cache.get("a", 2) == 2
        """,
        timeout=100,
    )


def test_subscription_at_the_end_of_the_interpreter_is_an_error(python):
    printed = python(
        """
        import os, tenure

        class Late:
            def __del__(self, write=os.write, tenure=tenure):
                try:
                    tenure.pressure.subscribe(print)
                except RuntimeError:
                    write(1, b"refused")
                # What needs no thread goes on.
                cache = tenure.Cache()
                cache["a"] = 1
                tenure.Mapping(1 << 20, populate=True).release()

        late = Late()
        """,
        timeout=60,
    )
    assert printed == "refused"


def test_fast_exit_at_the_end_of_the_interpreter_flushes(python, tmp_path):
    path = tmp_path / "file"
    python(
        f"""
        import sys, tenure
        # The garbage collector, which calls the destructor, finds the file still referenced.
        sys.kept = open({str(path)!r}, "w+")
        sys.kept.write("text")

        class Late:
            def __del__(self, tenure=tenure):
                tenure.fast_exit(7)

        late = Late()
        """,
        code=7,
        timeout=60,
    )
    assert path.read_text() == "text"

"""The examples in docstrings and in docs/PYTHON.md run as they are written."""

import doctest
import importlib.util
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest
import tenure

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs/PYTHON.md"


@pytest.mark.parametrize("name", ["tenure", *(f"tenure.{it.name}" for it in pkgutil.iter_modules(tenure.__path__))])
def test_examples_of_docstrings(name):
    if name == "tenure.__main__":
        return
    needs = {"tenure.dask": "distributed", "tenure.django": "django", "tenure.joblib": "joblib"}
    if name in needs and importlib.util.find_spec(needs[name]) is None:
        return
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_everything_public_has_a_docstring():
    for name in tenure.__all__:
        if name != "__version__":
            assert getattr(tenure, name).__doc__, name


def test_blocks_of_the_page_run_one_after_the_other(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(blocks) >= 5
    for block in blocks:
        # A block's imports name its needs, which may not be installed.
        for module in re.findall(r"^(?:import|from) (\w+)", block, re.M):
            if importlib.util.find_spec(module) is None:
                break
        else:
            done = subprocess.run(
                [sys.executable, "-B", "-c", block], cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == 0, block + done.stderr

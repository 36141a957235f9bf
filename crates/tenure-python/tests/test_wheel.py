"""The wheel that `make wheel` builds, installed into a fresh environment without a network.

It is built from the development profile, in a folder of its own below `target`."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

for tool in ("maturin", "make", "cargo", "strip"):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed", allow_module_level=True)
ROOT = pathlib.Path(__file__).resolve().parents[3]
if not os.access(ROOT / "crates/tenure-python/python/tenure", os.W_OK):
    pytest.skip("this user cannot write to the source", allow_module_level=True)


def run(*command, folder, **variables):
    # The package that the other tests import is not meant.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(it) for it in command],
        cwd=folder,
        env={**kept, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    if done.returncode != 0:
        pytest.fail(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    target = {"CARGO_TARGET_DIR": str(ROOT / "target/wheel")}
    run("make", "wheel", "WHEEL_PROFILE=dev", f"WHEELS={folder}", folder=ROOT, **target)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """The folder of the programs of a fresh environment with the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder, folder=folder)
    run(folder / "bin/pip", "install", "--no-index", wheel, folder=folder)
    return folder / "bin"


def test_wheel_holds_what_it_says(wheel):
    assert "-cp311-abi3-manylinux_" in wheel.name
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        for name in ("py.typed", "_native.pyi", "_native.abi3.so", "dask.py", "django.py"):
            assert f"tenure/{name}" in names
        for name in ("tenure", "libtenure_preload.so"):
            assert opened.getinfo(f"tenure/_bin/{name}").external_attr >> 16 & 0o111
    assert not (ROOT / "crates/tenure-python/python/tenure/_bin").exists()


SCRIPT = """
import sys, tenure
if sys.argv[1] == "inside":
    assert tenure.heap.install()
    before = tenure.heap.stats()["in_use_bytes"]
    block = bytearray(5 << 20)
    assert tenure.heap.stats()["in_use_bytes"] >= before + len(block)
else:
    # The heap is there from the start.
    assert not tenure.heap.install()
    with open("/proc/self/maps") as maps:
        assert "libtenure_preload" in maps.read()
cache = tenure.Cache()
cache["a"] = [1, b"2" * 100_000]
assert cache.get("a") in (None, [1, b"2" * 100_000])
print("ran", *sys.argv[1:])
"""


def test_installed_package_and_command_work(environment, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    python, tenure = environment / "python", environment / "tenure"
    assert run(python, script, "inside", folder=tmp_path) == "ran inside\n"
    assert run(tenure, "--version", folder=tmp_path).startswith("tenure ")
    outside = [
        [tenure, "run", "--heap", "--", python, script, "outside", "--x"],
        [python, "-m", "tenure", "run", "--heap", script, "outside", "--x"],
        [python, "-m", "tenure", "run", "--heap", "--", python, script, "outside", "--x"],
    ]
    for command in outside:
        assert run(*command, folder=tmp_path) == "ran outside --x\n"

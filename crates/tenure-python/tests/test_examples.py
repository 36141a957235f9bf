"""The examples, with small sizes."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"
ARGUMENTS = {
    "model_server.py": ["--requests", "200", "--inputs", "10", "--size", "32"],
    "pipeline.py": ["--rows", "300000", "--decay", "0.05"],
    "simulation.py": ["--states", "300", "--size", "5000", "--lookups", "2000"],
}


def run(name):
    path = EXAMPLES / name
    for module in re.findall(r"^import (\w+)", path.read_text(), re.M):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"python3 has no {module}")
    command = [sys.executable, "-B", path, *ARGUMENTS[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_example_has_its_arguments():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(ARGUMENTS)


def test_model_server_decodes_inputs_and_answers():
    printed = run("model_server.py")
    assert "200 requests" in printed and re.search(r"\d+ inputs of \d+ bytes are kept", printed)


def test_pipeline_reports_each_stage():
    stages = re.findall(r"^(\w+): \d+ MiB resident$", run("pipeline.py"), re.M)
    assert stages == ["start", "read", "totalled", "dropped"]


def test_simulation_computes_right_results():
    printed = run("simulation.py")
    hits, computed = map(int, re.match(r"(\d+) hits, (\d+) computed", printed).groups())
    assert hits + computed >= 2000 and "MiB were left" in printed

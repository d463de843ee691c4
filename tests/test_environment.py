"""The ways to install the course agree with pyproject.toml."""
import json
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {pin.name.lower(): pin for pin in (Requirement(line) for line in lines if line and line[0] != "#")}


def test_conda_users_get_the_packages_of_pyproject():
    pip = next(entry["pip"] for entry in CONDA["dependencies"] if isinstance(entry, dict))
    assert [line for line in pip if not line.startswith("--")] == PROJECT["dependencies"]
    assert "--constraint constraints.txt" in pip and "--editable ." in pip


def test_conda_users_get_the_python_of_pyproject():
    python = Requirement(next(entry for entry in CONDA["dependencies"] if str(entry).startswith("python")))
    assert set(python.specifier) == set(Requirement(f"python{PROJECT['requires-python']}").specifier)


def test_every_package_is_pinned_within_its_range():
    extras = [line for group in PROJECT["optional-dependencies"].values() for line in group]
    for line in PROJECT["dependencies"] + extras:
        wanted, pin = Requirement(line), pins().get(Requirement(line).name.lower())
        assert pin is not None, f"{wanted.name} has no pin in constraints.txt"
        version = str(pin.specifier).removeprefix("==")
        assert wanted.specifier.contains(version), f"{pin} is outside {wanted}"


def test_torch_is_pinned_to_the_measured_version_and_no_index_is_preset():
    assert str(pins()["torch"].specifier) == "==2.13.0"
    makefile = (ROOT / "Makefile").read_text()
    assert "\nTORCH ?=\n" in makefile and "extra-index-url" not in makefile


@pytest.mark.parametrize("name", ["Makefile", "constraints.txt", "environment.yml", "course/overrides.json"])
def test_the_files_are_part_of_a_clone(name):
    assert (ROOT / name).is_file()


def test_jupyterlab_keeps_widget_state_and_asks_nobody_for_news():
    overrides = json.loads((ROOT / "course" / "overrides.json").read_text())
    assert overrides["@jupyter-widgets/jupyterlab-manager:plugin"]["saveState"] is True
    assert overrides["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"

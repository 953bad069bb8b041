"""One environment, however it is made: pyproject, lock, conda and make agree."""

import itertools
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
PYTHONS = ["3.11", "3.12", "3.13"]


def requirements() -> list[Requirement]:
    project = PROJECT["project"]
    texts = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    return [Requirement(text) for text in texts]


def locked(python: str) -> dict[str, str]:
    """Name -> version of what the lock installs with a Python on Linux."""
    environment = {"python_full_version": f"{python}.0", "python_version": python, "sys_platform": "linux",
                   "platform_system": "Linux", "platform_machine": "x86_64", "implementation_name": "cpython",
                   "platform_python_implementation": "CPython", "os_name": "posix"}  # fmt: skip
    pins = [Requirement(line.rstrip("\\ ")) for line in LOCK.splitlines() if re.match(r"[A-Za-z0-9]", line)]
    return {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin in pins
        if pin.marker is None or pin.marker.evaluate(environment)
    }


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_what_the_project_needs(python):
    assert python in SpecifierSet(PROJECT["project"]["requires-python"])
    pins = locked(python)
    for needed in requirements():
        version = pins.get(canonicalize_name(needed.name))
        assert version is not None, f"{needed.name} is not in the lock"
        assert version in needed.specifier, f"{needed.name} {version} is locked, {needed.specifier} is needed"


def test_the_lock_has_what_is_pinned_by_hand():
    pins = locked("3.11")
    for pin in map(Requirement, PROJECT["tool"]["uv"]["constraint-dependencies"]):
        assert pins[canonicalize_name(pin.name)] in pin.specifier


def test_everything_in_the_lock_has_a_hash():
    entries = re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE).strip())
    assert len(entries) > 100
    assert all("--hash=sha256:" in entry for entry in entries)


def test_the_package_allows_the_versions_it_promises():
    torch = next(each for each in requirements() if each.name == "torch")
    assert "2.9.0" in torch.specifier
    assert "2.8.0" not in torch.specifier
    assert [f"3.{minor}" in SpecifierSet(PROJECT["project"]["requires-python"]) for minor in (10, 11, 13, 14)] == [
        False, True, True, False]  # fmt: skip


def test_conda_gives_the_same_packages():
    """conda-forge gives Python and pip; everything else comes from the lock."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    *own, rest = environment["dependencies"]
    assert [re.split("=", each)[0] for each in own] == ["python", "pip"]
    assert own[0].split("=")[1] in PYTHONS
    assert rest == {"pip": ["--requirement requirements.lock"]}


@pytest.fixture
def made(tmp_path):
    """A folder in which the environment has been made."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/installed").touch()
    return tmp_path


def is_current(folder: Path) -> bool:
    return subprocess.run(["make", "--question", "env"], cwd=folder, capture_output=True).returncode == 0


def test_make_env_does_nothing_where_nothing_has_changed(made):
    assert is_current(made)


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_make_env_installs_again_when_the_lock_or_the_project_changes(made, name):
    later = (made / ".venv/installed").stat().st_mtime + 10
    os.utime(made / name, (later, later))
    assert not is_current(made)

"""The set-up installs what the locks say: by uv, by pip where uv cannot be had, and without a network from a folder of wheels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("setup", "with_lock.py", "uv_settings.py")
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "small"
version = "1"

[tool.hatch.build]
dev-mode-dirs = ["src"]

[tool.hatch.build.targets.wheel]
packages = ["src/small"]
"""


def download(wheels: Path, *requirements: str) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--no-deps", "--dest", str(wheels)]
    subprocess.run([*pip, *requirements], check=True, timeout=300)


def find_pins(*names: str) -> str:
    """The entries of these packages in the lock of the project, hashes and all."""
    entries = (ROOT / "requirements.lock").read_text().split("\n")
    begins = [number for number, line in enumerate(entries) if line and not line.startswith((" ", "#"))]
    found = [entries[start:end] for start, end in zip(begins, [*begins[1:], len(entries)], strict=True)]
    return "\n".join(["\n".join(entry) for entry in found if entry[0].partition("==")[0] in names]) + "\n"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the small project needs, and uv."""
    folder = tmp_path_factory.mktemp("wheels")
    (folder / "small.lock").write_text(find_pins("hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"))
    download(folder, "--requirement", str(folder / "small.lock"))
    download(folder, "--requirement", str(ROOT / "requirements-setup.lock"))
    return folder


@pytest.fixture
def project(tmp_path: Path, wheels: Path) -> Path:
    folder = tmp_path / "small project"
    (folder / "src" / "small").mkdir(parents=True)
    (folder / "scripts").mkdir()
    for name in SCRIPTS:
        shutil.copy2(ROOT / "scripts" / name, folder / "scripts" / name)
    shutil.copy(ROOT / "requirements-setup.lock", folder)
    shutil.copy(wheels / "small.lock", folder / "requirements.lock")
    (folder / "src" / "small" / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder


def set_up(project: Path, wheels: Path) -> subprocess.CompletedProcess[str]:
    """Runs the set-up with nothing but a folder of wheels."""
    (home := project.parent / "home").mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHON": sys.executable}
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    command = [str(project / "scripts" / "setup"), "runtime"]
    return subprocess.run(command, env=environment | offline, capture_output=True, text=True, timeout=300)


def list_packages(project: Path) -> dict[str, str]:
    """The packages of the environment, and who installed each."""
    (site,) = (project / ".venv" / "lib").glob("python*/site-packages")
    return {info.name.partition("-")[0]: (info / "INSTALLER").read_text().strip() for info in site.glob("*.dist-info")}


def test_uv_installs_from_a_folder_of_wheels(project: Path, wheels: Path) -> None:
    done = set_up(project, wheels)
    assert done.returncode == 0, done.stderr
    packages = list_packages(project)
    assert packages.pop("pip") == "pip"
    assert set(packages) == {"hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove_classifiers", "small"}
    assert set(packages.values()) == {"uv"}
    assert not (project / ".venv" / "uv").exists()
    assert set_up(project, wheels).stderr == ""


def test_pip_installs_where_uv_cannot_be_had(project: Path, wheels: Path, tmp_path: Path) -> None:
    shutil.copytree(wheels, few := tmp_path / "few")
    for wheel in few.glob("uv-*"):
        wheel.unlink()
    done = set_up(project, few)
    assert done.returncode == 0, done.stderr
    assert set(list_packages(project).values()) == {"pip"}


def test_a_package_that_is_not_the_locked_one_is_refused(project: Path, wheels: Path) -> None:
    lock = project / "requirements.lock"
    lock.write_text(lock.read_text().replace("sha256:", "sha256:0000"))
    done = set_up(project, wheels)
    assert done.returncode == 1
    assert "hatchling" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("mainspring: pip failed, its output is above.")
    assert "hatchling" not in list_packages(project)

"""Packages for code in the sandbox: installed once, read-only, offline after that; and what is drawn of code that fails."""

import re
import zipfile
from pathlib import Path

import pytest
from tests.cli.command import Shell, plain

from mainspring.app.process import run_command
from mainspring.core.errors import SandboxError
from mainspring.tools.sandbox import packages
from mainspring.tools.sandbox.packages import OURS


def add_wheel(folder: Path, name: str, **modules: str) -> None:
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for module, text in modules.items():
            wheel.writestr(f"{module.replace('__', '/')}.py", text)
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "index").mkdir()
    add_wheel(tmp_path / "index", "gears", gears="teeth = 42\n")
    (tmp_path / "packages.txt").write_text("gears==1.0\n")
    (tmp_path / "mainspring.toml").write_text('builtins = ["code_interpreter"]\nsandbox_packages = "packages.txt"\n')
    return Shell(tmp_path)


def run(shell: Shell, *cells: str, index: str) -> str:
    turns = [{"calls": [{"name": "code_interpreter", "arguments": {"code": cell}}]} for cell in cells]
    model = shell.script(*turns, {"say": "Done."})
    links = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": index, "UV_NO_INDEX": "1", "UV_FIND_LINKS": index, "UV_OFFLINE": "1"}
    env = {"HOME": str(shell.folder), "XDG_CACHE_HOME": str(shell.folder / "cache"), **links}
    return plain(shell.run_on_terminal("run", "Count.", "--model", model, "--no-store", env=env).out)


def test_code_has_the_packages_of_the_list_and_the_next_start_needs_no_registry(shell: Shell) -> None:
    write = "import gears, pathlib\npathlib.Path(gears.__file__).write_text('teeth = 0')"
    look = "import os\nprint(os.path.isfile(os.environ['FONTCONFIG_FILE']))"  # or what draws text complains in the output
    failing = "def fall():\n    return 1 / 0\nfall()"
    shown = run(shell, "import gears\nprint(gears.teeth)", write, failing, look, "import cogs.wheels", index="index")
    told = " ".join(shown.split())
    assert "mainspring: installing the packages of packages.txt for the sandbox, once" in told, shown
    assert "\n  42" in shown, shown
    assert "\n✓ True" in shown, shown
    assert "✗ The sandbox has no package `cogs`; `sandbox_packages` in the settings gives it packages." in told, shown
    assert re.search(r"^✗ (OSError|PermissionError): ", shown, re.MULTILINE), shown
    assert re.search(r"^✗ ZeroDivisionError: division by zero", shown, re.MULTILINE), shown
    again = run(shell, "import gears\nprint(gears.teeth)", index="nowhere")
    assert ("\n  42" in again, "installing" in again) == (True, False)


def test_a_person_gives_code_a_file_and_gets_what_it_has_made(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("region,sold\nnorth,150\n")
    cell = (
        "text = open('sales.csv').read()\nimport os\nos.mkdir('out')\nopen('out/report.md', 'w').write(text.upper())\n"
        "os.symlink('/etc/hostname', 'link')"
    )
    shell = Shell(tmp_path)
    model = shell.script({"calls": [{"name": "code_interpreter", "arguments": {"code": cell}}]}, {"say": "Done."})
    with_code = ("--model", model, "--no-store", "--builtin", "code_interpreter", "--file", "sales.csv", "--save-files", "made")
    done = shell.run("run", "Report.", *with_code)
    assert (done.code, "out/report.md saved in made" in done.err) == (0, True), done.err
    assert {str(path.relative_to(tmp_path / "made")): path.read_text() for path in (tmp_path / "made").rglob("*.*")} == {
        "out/report.md": "REGION,SOLD\nNORTH,150\n"
    }
    assert not (tmp_path / "made" / "link").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--file", "nowhere.csv"), "there is no file `nowhere.csv`"),
        (("--save-files", "."), "is no empty folder"),
        (("--save-files", "new"), "--builtin code_interpreter"),
        (("--file", "packages.txt"), "--builtin code_interpreter"),
    ],
)
def test_files_that_cannot_be_given_or_saved_are_refused_before_the_run(
    shell: Shell, options: tuple[str, ...], told: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shell.folder)
    (shell.folder / "mainspring.toml").unlink()
    assert run_command(["run", "Count.", "--model", shell.script({"say": "Hi."}), "--no-store", *options]) == 2
    captured = capfd.readouterr()
    assert (captured.out, told in captured.err) == ("", True)


def test_a_list_that_cannot_be_installed_is_said_and_code_does_not_run_without_it(shell: Shell) -> None:
    (shell.folder / "packages.txt").write_text("sprockets==1.0\n")
    shown = run(shell, "print(6 * 7)", index="index")
    assert "packages.txt" in shown
    assert "\n  42" not in shown


def test_an_installation_that_does_not_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "SECONDS", 0.0)
    (tmp_path / "packages.txt").write_text("gears==1.0\n")
    with pytest.raises(SandboxError, match="not installed after"):
        packages.PackageList(tmp_path / "packages.txt", tmp_path / "kept").build()


def test_our_own_list_has_what_data_work_needs_with_hashes() -> None:
    entries = re.split(r"\n(?=\S)", OURS.read_text())
    named = {entry.partition("==")[0]: entry for entry in entries if "==" in entry and not entry.startswith("#")}
    assert {"numpy", "pandas", "matplotlib", "openpyxl"} <= set(named)
    assert all("--hash=sha256:" in entry for entry in named.values())

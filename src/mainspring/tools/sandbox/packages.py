"""Python packages for code in the sandbox: an environment of their own, built once from a list and read-only from then on.

`PackageList` names the list: ours (`packages.lock`, with hashes), or a file of requirements. What is built is kept under a digest
of the list and of the interpreter, so a changed list makes another one, and without a network the one that is there is used.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from logging import getLogger
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Final

from msgspec import Struct

from mainspring.core.errors import SandboxError

log = getLogger(__name__)

OURS: Final = Path(__file__).with_name("packages.lock")
SECONDS: Final = 900.0
PLOTS: Final = "mainspring_plots"
# `plt.show()` has nobody to show anything to: it writes a file, which the tool shows as an image.
_PLOTS_MODULE: Final = """
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas, FigureManagerBase as FigureManager

_shown = 0


def show(*args, **options):
    global _shown
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        _shown += 1
        pyplot.figure(number).savefig(f"plot-{_shown}.png")
    pyplot.close("all")
"""


# There is no /etc in the sandbox, and without a list of folders the programs of fontconfig complain in the midst of the output.
FONTS: Final = "fonts.conf"
_FONTS_LIST: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>/usr/share/fonts</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
"""


class PackageList(Struct, frozen=True):
    """The list, the folder that environments are kept in, and who is told of what takes long."""

    file: Path
    folder: Path
    tell: Callable[[str], None] = log.warning

    def build(self) -> Path:
        """The environment, built now if it is not there yet. Raises `SandboxError`; the next call tries again."""
        try:
            text = self.file.read_bytes()
        except OSError as error:
            raise SandboxError(f"the list of packages `{self.file}` cannot be read: {error.strerror}") from error
        made_for = f"{sys.version} {sys.platform} {os.uname().machine}".encode()
        ours = f"{_PLOTS_MODULE}{_FONTS_LIST}".encode()
        target = self.folder / hashlib.sha256(text + made_for + ours).hexdigest()[:16]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not target.exists():
                    self._install(target)
        except subprocess.TimeoutExpired as error:
            told = f"the packages of `{self.file}` are not installed after {SECONDS:.0f} s; check the network and the list"
            raise SandboxError(told) from error
        except OSError as error:
            raise SandboxError(f"packages cannot be kept in `{self.folder}`: {error}; set XDG_CACHE_HOME") from error
        return target

    def _install(self, target: Path) -> None:
        what = "numpy, pandas, matplotlib and openpyxl" if self.file == OURS else f"the packages of {self.file.name}"
        self.tell(f"installing {what} for the sandbox, once; this takes a minute")
        with TemporaryDirectory(dir=self.folder) as made:
            place = Path(made) / "packages"
            command = [*_choose_installer(), "--target", str(place), "--requirement", str(self.file)]
            command += ["--require-hashes"] if self.file == OURS else []
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=SECONDS)
            if done.returncode:
                complaint = " ".join(done.stderr.split())[-300:]
                raise SandboxError(
                    f"the packages of `{self.file}` cannot be installed ({complaint}); check the network and the list"
                )
            (place / f"{PLOTS}.py").write_text(_PLOTS_MODULE)
            (place / FONTS).write_text(_FONTS_LIST)
            Path(made).chmod(0o755)
            place.rename(target)


def _choose_installer() -> list[str]:
    options = ["--quiet", "--only-binary", ":all:"]
    if (uv := which("uv")) is not None:
        return [uv, "pip", "install", *options, "--python", sys.executable]
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", *options, "--no-input", "--disable-pip-version-check"]
    raise SandboxError("neither uv nor pip is there to install the packages of the sandbox; install one of them")

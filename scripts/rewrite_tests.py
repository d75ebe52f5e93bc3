"""Compiles the tests as pytest does, with their assertions rewritten, and keeps that beside them.

Each process of pytest would do so for itself, which takes 12 s of a core, and all of them begin at once. They find what is kept
here, also where they may keep nothing themselves (`PYTHONDONTWRITEBYTECODE`).
"""

from pathlib import Path

from _pytest.assertion import AssertionState, rewrite
from _pytest.config import get_config

ROOT = Path(__file__).resolve().parent.parent


def main(folder: Path = ROOT / "tests") -> None:
    config = get_config()
    state = AssertionState(config, "rewrite")
    for file in [*folder.rglob("test_*.py"), *folder.rglob("conftest.py")]:
        kept = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
        if "node_modules" in file.parts or rewrite._read_pyc(file, kept) is not None:
            continue
        kept.parent.mkdir(exist_ok=True)
        stat, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(state, code, stat, kept)


if __name__ == "__main__":
    main()

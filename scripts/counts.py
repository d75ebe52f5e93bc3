"""Counts the instructions of fixed work (`bench/counted.py`) by callgrind; fails where one is a tenth above its record.

    ./check counts                       counts, and judges by the record
    ./check counts --record REASON       counts, and makes that the record, with the reason why it may be

Unlike times, the counts are the same to a few in a thousand (paced streams to 4 %) whatever else the machine does. They hold for
one build of Python, so `bench/counts.json` keeps them for each; under another one they are shown and not judged. Without valgrind
nothing is counted.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "bench" / "counts.json"
MOST = 1.10
SECONDS = 900


class Valgrind(NamedTuple):
    command: str
    environment: dict[str, str]


class Row(NamedTuple):
    """One kind of work: what it takes now, and what it took when that was recorded."""

    name: str
    instructions: int
    recorded: int | None

    @property
    def ratio(self) -> float | None:
        return None if self.recorded is None else self.instructions / self.recorded


def find_valgrind(root: Path = ROOT) -> Valgrind | None:
    """The system's, or the one that `scripts/setup` has unpacked."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    if found := shutil.which("valgrind"):
        return Valgrind(found, {})
    unpacked = root / ".venv" / "valgrind" / "usr"
    command = unpacked / "bin" / "valgrind.bin"
    return Valgrind(str(command), {"VALGRIND_LIB": str(unpacked / "libexec" / "valgrind")}) if command.exists() else None


def name_interpreter() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}, {platform.python_compiler()}, {platform.machine()}"


def count(valgrind: Valgrind) -> dict[str, int]:
    """Instructions by the name of the work. Raises `RuntimeError` with what was printed if the work fails."""
    with tempfile.TemporaryDirectory(prefix="mainspring-counts-") as folder:
        output = Path(folder, "callgrind.out")
        command = [valgrind.command, "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={output}", "--quiet"]
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
        try:
            done = subprocess.run(
                [*command, sys.executable, "-m", "bench.counted"],
                cwd=ROOT,
                env={**kept, **valgrind.environment, "PYTHONHASHSEED": "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                text=True,
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not done after {SECONDS} s") from None
        dumps = [read_dump(file.read_text()) for file in sorted(Path(folder).glob("callgrind.out.*"))]
        counts = dict(dump for dump in dumps if dump is not None)
        if done.returncode or not counts:
            raise RuntimeError(f"{done.stdout}exit status {done.returncode}")
        return counts


def read_dump(text: str) -> tuple[str, int] | None:
    name = re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.MULTILINE)
    total = re.search(r"^totals: (\d+)$", text, re.MULTILINE)
    return (name[1], int(total[1])) if name and total else None


def compare(counts: dict[str, int], record: dict[str, int] | None) -> list[Row]:
    return [Row(name, number, (record or {}).get(name)) for name, number in counts.items()]


def report(rows: list[Row]) -> int:
    """Prints the rows and, in the last line, the verdict. Returns the exit status."""
    for row in rows:
        beside = "" if row.ratio is None else f"{row.ratio:8.3f} x the record"
        print(f"{row.name:40} {row.instructions / 1e6:10.1f} M instructions {beside}")
    over = [row for row in rows if row.ratio is not None and row.ratio > MOST]
    if over:
        print("Make it cheaper. If it is worth its price: ./check counts --record 'why it costs more'")
        print(f"{len(over)} of {len(rows)} counts are more than a tenth above the record: {', '.join(row.name for row in over)}")
        return 1
    if any(row.ratio is None for row in rows):
        print(f"not judged: nothing is recorded for {name_interpreter()}")
    else:
        low = [row for row in rows if row.ratio is not None and row.ratio < 2 - MOST]
        hint = "; record the lower ones, or they may creep up again" if low else ""
        print(f"{len(rows)} counts, none more than a tenth above the record{hint}")
    return 0


def write_record(counts: dict[str, int], reason: str) -> None:
    records = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    reasons = records.get(name_interpreter(), {}).get("reasons", [])
    records[name_interpreter()] = {"counts": counts, "reasons": [reason, *reasons]}
    RECORD.write_text(json.dumps(dict(sorted(records.items())), indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./check counts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", metavar="REASON", help="make these counts the record; the reason is kept beside them")
    reason = parser.parse_args().record
    if reason is not None and len(reason.split()) < 3:
        parser.error("say in a few words why the counts change, such as --record 'audit notes are signed'")
    valgrind = find_valgrind()
    if valgrind is None:
        print("skipped: no valgrind")
        return 0
    try:
        counts = count(valgrind)
    except RuntimeError as error:
        print(error)
        return 1
    if reason is not None:
        write_record(counts, reason)
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return report(compare(counts, known.get(name_interpreter(), {}).get("counts")))


if __name__ == "__main__":
    sys.exit(main())

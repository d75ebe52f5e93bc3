"""What the injection scan costs: microseconds of CPU per KB, for ordinary texts and for texts made to be slow.

    python bench/injection.py [--kilobytes N]

The best of several rounds, each on one text of the given size, beside one regular expression for the best-known phrase.
"""

import argparse
import base64
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import parse_options

from mainspring.features.governance.injection import scan

# What somebody would write who has read of the matter once.
PLAIN = re.compile(r"ignore\s+(all\s+)?(the\s+)?(previous|prior|above)\s+(instructions|rules|reminder)", re.IGNORECASE)
PROSE = (
    "The customer asks us to ignore the previous reminder, since the system had already booked the payment. Please check the "
    "rules for refunds in the handbook, tell the user about the result, and follow the instructions of the finance team.\n"
)
RUSSIAN = "Клиент просит не учитывать прошлое напоминание, потому что система уже учла платёж. Проверьте правила возврата.\n"
CODE = 'def render(self, prompt: str) -> dict[str, str]:\n    return {"role": "user", "content": prompt.strip()}\n\n'


def texts(size: int) -> dict[str, str]:
    noise = random.Random(1).randbytes(size)
    return {
        "prose": PROSE * (size // len(PROSE) + 1),
        "Russian prose": RUSSIAN * (size // len(RUSSIAN) + 1),
        "code": CODE * (size // len(CODE) + 1),
        "an image in base64": base64.b64encode(noise).decode(),
        "prose in base64": base64.b64encode(PROSE.encode() * (size // len(PROSE) + 1)).decode(),
        "hex": noise.hex(),
        "beginnings of phrases": "ignore all of the " * (size // 18 + 1),
        "ends of phrases": "pretend previous instructions without rules. " * (size // 44 + 1),
        "closing tags": "<system></system>" * (size // 17 + 1),
        "single letters": "i g n o r e " * (size // 12 + 1),
        "escapes of escapes": "%2525" * (size // 5 + 1),
        "one word": "a" * size,
        "one blank": " " * size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kilobytes", type=int, default=100)
    size = parse_options(parser).kilobytes * 1024
    for name, whole in texts(size).items():
        text = whole[:size]
        best, plain = (min(cost(work, text) for _ in range(5)) for work in (scan, PLAIN.findall))
        beside = f"{best / plain:6.1f} x one expression {best * 1e3:8.1f} ms in all"
        print(f"{name:24} {best / size * 1024 * 1e6:8.1f} µs per KB {beside}, {len(scan(text))} findings")


def cost(work: Callable[[str], object], text: str) -> float:
    began = time.perf_counter()
    work(text)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

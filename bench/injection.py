"""What the injection scan costs: microseconds of CPU per KB, for ordinary texts and for texts made to be slow.

    python bench/injection.py [--kilobytes N]

The best of several rounds, each on one text of the given size.
"""

import argparse
import base64
import random
import time

from mainspring.features.governance.injection import scan

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
    size = parser.parse_args().kilobytes * 1024
    for name, whole in texts(size).items():
        text = whole[:size]
        best = min(cost(text) for _ in range(5))
        print(f"{name:24} {best / size * 1024 * 1e6:8.1f} µs per KB {best * 1e3:8.1f} ms in all, {len(scan(text))} findings")


def cost(text: str) -> float:
    began = time.process_time()
    scan(text)
    return time.process_time() - began


if __name__ == "__main__":
    main()

"""Exponential backoff."""


def backoff(attempt: int, *, base: float, cap: float = float("inf")) -> float:
    """Seconds to wait after a failed attempt, counted from 1: exponential, from `base` to `cap`."""
    return min(cap, base * 2.0 ** (attempt - 1))

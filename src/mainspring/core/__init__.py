"""The loop: pure functions that say what a log means and what must happen next."""

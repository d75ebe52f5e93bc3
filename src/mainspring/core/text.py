"""Text cut to size for a message, a line of a log or a screen."""


def shorten_line(text: str, most: int = 500, mark: str = "...") -> str:
    """The text on one line of at most `most` characters, white space collapsed; one that was cut ends with `mark`."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - len(mark)] + mark

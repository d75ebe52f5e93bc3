"""Writing on standard output, to the letter: a terminal gets colours and lines that fit, everything else plain text."""

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType, Segment, Segments
from rich.style import Style

from mainspring.cli.text import Flow, beginning, cut

WIDEST = 100
LONGEST_LINE = 240

_IN_ASCII = str.maketrans({"»": ">", "┊": "|", "→": ">", "✓": "+", "✗": "x", "…": "...", "─": "-", "·": "-", "█": "#", "░": "."})
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Ink:
    """Raises `BrokenPipeError` when nobody reads standard output any more. Use as `with` to write all at once."""

    def __init__(self) -> None:
        self._console = _Console(highlight=False, soft_wrap=True)
        self._is_ascii = not self._console.encoding.lower().startswith("utf")
        self._has_status = False
        self._frame = 0
        self.is_terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self.width = min(self._console.width - 1, WIDEST) if self.is_terminal else WIDEST

    def __enter__(self) -> None:
        self._console.__enter__()
        if self._has_status:
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
            self._has_status = False

    def __exit__(self, *_: object) -> None:
        self._console.__exit__(None, None, None)

    def put(self, text: str, style: str = "") -> None:
        # As segments, not as markup, and neither wrapped nor cropped: what is written is what is shown.
        if text:
            shown = text.translate(_IN_ASCII) if self._is_ascii else text
            self._console.print(Segments([Segment(shown, Style.parse(style))]), end="")

    def block(self, mark: str, text: str, style: str, lines: int) -> None:
        """The first lines of a text, behind a mark of two columns."""
        self.put(mark, f"bold {style}")
        self.text(text, style, lines)

    def text(self, text: str, style: str, lines: int, note: str = "") -> None:
        """The first lines of a text, the gutter of the first being written already, and a note at their end."""
        flow = self.flow("  ", column=2)
        self.put(flow.add(beginning(text, lines, LONGEST_LINE)) + flow.rest(), style)
        self.put(f"  {note}" if note else "", "dim")
        self.put("\n")

    def flow(self, gutter: str, column: int = 0) -> Flow:
        return Flow(gutter, self.width if self.is_terminal else None, column)

    def status(self, text: str) -> None:
        """A moving sign of life on the last line of a terminal, which is empty; it is gone with the next thing written."""
        if self.is_terminal:
            with self:
                self._frame = (self._frame + 1) % len(_FRAMES)
                self.put(f"{_FRAMES[self._frame]} {cut(text, self.width - 2)}", "dim")
                self._has_status = True


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

"""What plans say about themselves: errors, tables with bars for notebooks, and a line of progress."""

from __future__ import annotations

import html
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

_BAR = "<div style='background:#4a7ebb;height:0.8em;width:{:.0f}px'></div>"
#: Width of the longest bar in pixels, and of a line of progress in characters.
_PIXELS, _CHARACTERS = 200, 30


def table(rows: Sequence[tuple[str, Any]]) -> str:
    """Names and values."""
    cells = (f"<tr><th>{html.escape(str(key))}</th><td>{html.escape(str(value))}</td></tr>" for key, value in rows)
    return f"<table>{''.join(cells)}</table>"


def bars(seconds: Mapping[str, float]) -> str:
    """Seconds with bars."""
    most = max(seconds.values(), default=0.0) or 1.0
    cells = (
        f"<tr><th>{html.escape(name)}</th><td>{value:.3g} s</td><td>{_BAR.format(_PIXELS * value / most)}</td></tr>"
        for name, value in seconds.items()
        if value > 0
    )
    return f"<table>{''.join(cells)}</table>"


class Errors(NamedTuple):
    """Errors of one output at sampled targets against direct summation (definitions: CONVENTIONS.md)."""

    rel_l2: float
    rms: float
    max_over_rms: float
    max_rel: float

    def __repr__(self) -> str:
        return f"Errors({', '.join(f'{name}={value:.2g}' for name, value in zip(self._fields, self, strict=True))})"


class Report(dict[str, Errors]):
    """The errors of each output. A notebook shows them as a table, with a bar for the correct digits of ``rel_l2``."""

    def _repr_html_(self) -> str:
        names = "".join(f"<th>{name}</th>" for name in Errors._fields)
        rows = []
        for output, errors in self.items():
            values = "".join(f"<td>{value:.2g}</td>" for value in errors)
            digits = -math.log10(min(max(errors.rel_l2, 1e-16), 1.0))
            bar = _BAR.format(_PIXELS * digits / 16)
            rows.append(f"<tr><th>{html.escape(output)}</th>{values}<td>{bar}</td><td>{digits:.1f} digits</td></tr>")
        return f"<table><tr><th></th>{names}</tr>{''.join(rows)}</table>"


class Progress:
    """A line that shows how far a plan or an evaluation is: ``fmm.Plan(…, progress=True)``, or ``progress=Progress()``.

    The line goes to standard error. It appears when work takes longer than ``delay`` seconds, and is removed at the end.

    >>> import io
    >>> line = Progress(file=io.StringIO(), delay=0.0)
    >>> line("p2p", 0.5)
    True
    >>> line.file.getvalue()
    '\\rp2p         ███████████████░░░░░░░░░░░░░░░  50 %'
    """

    def __init__(self, file: TextIO | None = None, delay: float = 0.2) -> None:
        self.file = sys.stderr if file is None else file
        self.delay = delay
        self._start: float | None = None
        self._shown = 0

    def __call__(self, phase: str, fraction: float) -> bool:
        """Shows the phase. Called before each phase with the finished fraction."""
        now = time.monotonic()
        if self._start is None:
            self._start = now
        if now - self._start >= self.delay:
            full = round(_CHARACTERS * fraction)
            line = f"{phase:<11} {'█' * full}{'░' * (_CHARACTERS - full)} {100 * fraction:3.0f} %"
            self.file.write("\r" + line.ljust(self._shown))
            self.file.flush()
            self._shown = len(line)
        return True

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the line."""
        if self._shown:
            self.file.write("\r" + " " * self._shown + "\r")
            self.file.flush()
        self._start, self._shown = None, 0

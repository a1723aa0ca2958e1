"""The console of all commands: what it prints cannot steer the terminal, wherever its words come from."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fleetune.formatting import visible


class Terminal(Console):
    """A console that spells out control characters: names, labels and errors may hold them. Colours are its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See Console."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def terminal(**settings: Any) -> Terminal:
    """A console that prints text verbatim, apart from control characters."""
    return Terminal(highlight=False, markup=False, emoji=False, soft_wrap=True, **settings)

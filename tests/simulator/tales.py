"""Stories that are told twice: right, and wrong, which must break a promise."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator.story import Story

Tale = Callable[[Story, bool], None]


class Tales:
    """The stories of one module: (promise, tale, settings of the story)."""

    def __init__(self) -> None:
        self.all: list[tuple[str, Tale, dict[str, object]]] = []

    def breaks(self, promise: str, **settings: object) -> Callable[[Tale], Tale]:
        """Tells a story twice: right, and wrong, which must break ``promise``."""

        def keep(tale: Tale) -> Tale:
            self.all.append((promise, tale, settings))
            return tale

        return keep


def told(tale: Tale, settings: dict[str, object], wrong: bool) -> Story:
    story = Story(**settings)  # type: ignore[arg-type]
    tale(story, wrong)
    return story

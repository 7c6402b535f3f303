"""Stories in two versions: a right one, and a wrong one that must break a promise."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator.story import Story

Tale = Callable[[Story, bool], None]


class Tales:
    """The stories of one module: (promise, tale, settings of the story)."""

    def __init__(self) -> None:
        self.all: list[tuple[str, Tale, dict[str, object]]] = []

    def breaks(self, promise: str, **settings: object) -> Callable[[Tale], Tale]:
        """Register a story with the promise that its wrong version must break."""

        def keep(tale: Tale) -> Tale:
            self.all.append((promise, tale, settings))
            return tale

        return keep


def told(tale: Tale, settings: dict[str, object], wrong: bool) -> Story:
    story = Story(**settings)  # type: ignore[arg-type]
    tale(story, wrong)
    return story

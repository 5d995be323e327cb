"""How many realtime sessions are live, whatever they came over: the bound on them holds for all together."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web


class Admission:
    """Each face adds what counts its own sessions."""

    def __init__(self) -> None:
        self._counts: list[Callable[[], int]] = []

    @property
    def live(self) -> int:
        """Sessions that are live now."""
        return sum(count() for count in self._counts)

    def add(self, count: Callable[[], int]) -> None:
        """Count these too."""
        self._counts.append(count)


ADMISSION = web.AppKey("admission", Admission)


def admission(app: web.Application) -> Admission:
    """The application's; made when it is first asked for."""
    if ADMISSION not in app:
        app[ADMISSION] = Admission()
    return app[ADMISSION]

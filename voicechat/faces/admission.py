"""Which realtime sessions are let in, whatever they come over: the bounds on them hold for all together."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from voicechat.faces.errors import SERVER, ApiError, too_many
from voicechat.faces.metered import callers
from voicechat.faces.metrics import METRICS

FULL_RETRY_S = 10


class Admission:
    """Each face adds what counts its own sessions. While it is ``draining`` nobody new is let in."""

    def __init__(self, refused: Callable[[str], None] = lambda _: None) -> None:
        self._counts: list[Callable[[], int]] = []
        self._refused = refused
        self._told: list[Callable[[], None]] = []
        self.draining = False

    @property
    def live(self) -> int:
        """Sessions that are live now."""
        return sum(count() for count in self._counts)

    def add(self, count: Callable[[], int]) -> None:
        """Count these too."""
        self._counts.append(count)

    def tell(self, going_down: Callable[[], None]) -> None:
        """Call this once no more sessions are let in, so that those that are live learn of it."""
        self._told.append(going_down)

    def drain(self) -> None:
        """From now on nobody is let in; whoever is in is told."""
        self.draining = True
        for going_down in self._told:
            going_down()

    def check(self, most: int, *, ready: bool) -> None:
        """Raise :class:`ApiError` if one more session can't be taken: ``most`` are live, the server is going down, or
        the caller has as many as its key allows."""
        if self.draining:
            raise draining()
        if not ready:
            headers = {"Retry-After": "5"}
            raise ApiError(503, "The server is not ready yet.", kind=SERVER, code="not_ready", headers=headers)
        if self.live >= most:
            self._refused("sessions")
            raise too_many(f"All {most} sessions are in use; try again later.", FULL_RETRY_S, what="sessions")
        for account in callers():
            if (refusal := account.session()) is not None:
                self._refused("sessions")
                raise too_many(refusal.message, refusal.wait, what="sessions")

    @staticmethod
    def opened() -> Callable[[], None]:
        """Count a session on its caller's account; what is returned is called once it has ended."""
        accounts = callers()
        for account in accounts:
            account.live_sessions += 1

        def closed() -> None:
            for account in accounts:
                account.live_sessions -= 1

        return closed


def draining() -> ApiError:
    """What is asked for while the server is going down."""
    message = "The server is going down and takes nothing new."
    return ApiError(503, message, kind=SERVER, code="draining", headers={"Retry-After": "10", "Connection": "close"})


ADMISSION = web.AppKey("admission", Admission)


def admission(app: web.Application) -> Admission:
    """The application's; made when it is first asked for."""
    if ADMISSION not in app:
        metrics = app.get(METRICS)
        refused = (lambda _: None) if metrics is None else lambda reason: metrics.rejections.labels(reason).inc()
        app[ADMISSION] = Admission(refused)
    return app[ADMISSION]

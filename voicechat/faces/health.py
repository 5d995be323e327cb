"""``/healthz``: the process answers. ``/readyz``: every stage is warm and up; until then 503 and which is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

from voicechat.contract.cascade import Cascade
from voicechat.faces.admission import admission
from voicechat.faces.errors import RETRY_AFTER_S, json_response
from voicechat.faces.operation import JSON, TEXT, Operation, Reply, array, documented, struct, whole

StageStates = Callable[[], Mapping[str, str]]
"""Tells the state of each stage by its name: ``up``, ``starting`` or ``down``."""


_STAGES = {"type": "object", "additionalProperties": TEXT}
_ALIVE = Operation("Whether the process answers", {200: Reply("It does.", {JSON: whole({"status": {"const": "ok"}})})})
_READY = Operation(
    "Whether every stage is warm and up",
    {
        200: Reply("It is ready.", {JSON: whole({"status": {"const": "ready"}, "model": TEXT, "stages": _STAGES})}),
        503: Reply(
            "It is not: which stages are waited for, or that the server is going down.",
            {JSON: struct({"status": TEXT, "waiting_for": array(TEXT), "stages": _STAGES}, ("status", "stages"))},
        ),
    },
)


def setup(app: web.Application, cascade: Cascade, stage_states: StageStates | None) -> None:
    """Add both routes."""

    @documented(_ALIVE)
    async def healthz(_: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    @documented(_READY)
    async def readyz(_: web.Request) -> web.Response:
        stages = dict(stage_states()) if stage_states is not None else {}
        if admission(app).draining:
            return json_response({"status": "draining", "stages": stages}, status=503)
        if cascade.ready:
            return json_response({"status": "ready", "model": cascade.model.name, "stages": stages})
        waiting = [name for name, state in stages.items() if state != "up"]
        body = {"status": "not ready", "waiting_for": waiting, "stages": stages}
        return json_response(body, status=503, headers={"Retry-After": str(RETRY_AFTER_S)})

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)

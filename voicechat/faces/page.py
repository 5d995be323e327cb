"""The voice chat page: ``index.html`` at ``/`` and the other files of the web folder beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web

from voicechat.faces.operation import PAGE, documented

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".map": "application/json; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".wav": "audio/wav",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
}
"""What may be served, and as what. Not left to the system's table, which differs from machine to machine."""


def setup(app: web.Application, web_dir: Path) -> None:
    """Serve the files under ``web_dir``. The routes match only names with an extension, so they hide no other face."""
    root = web_dir.resolve()

    def find(name: str) -> Path | None:
        path = (root / name).resolve()
        inside = path.is_relative_to(root) and not any(part.startswith(".") for part in path.relative_to(root).parts)
        return path if inside and path.suffix in _TYPES and path.is_file() else None

    @documented(PAGE)
    async def serve(request: web.Request) -> web.StreamResponse:
        name = request.match_info.get("path", "index.html")
        path = await asyncio.get_running_loop().run_in_executor(None, find, name)
        if path is None:
            raise web.HTTPNotFound
        headers = {
            "Content-Type": _TYPES[path.suffix],
            "Cache-Control": "no-cache",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        return web.FileResponse(path, headers=headers)

    app.router.add_get("/", serve)
    app.router.add_get(r"/{path:(?!v1/)[\w\-./]+\.\w+}", serve)

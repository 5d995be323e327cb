"""Firefox, driven by WebDriver BiDi over a WebSocket, as a program that runs in the namespace of the server.

``python -m tests.web.firefox FOLDER URL SCRIPT`` opens URL in a headless Firefox whose microphone is a made-up one,
evaluates what is in the file SCRIPT, and prints the text that its promise brings.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import aiohttp

from tests import needed

PREFS = {
    "media.navigator.streams.fake": True,
    "media.navigator.permission.disabled": True,
    "media.autoplay.default": 0,
    "media.peerconnection.ice.loopback": True,
    "media.peerconnection.ice.obfuscate_host_addresses": False,
    "network.manage-offline-status": False,
    "network.connectivity-service.enabled": False,
    "network.captive-portal-service.enabled": False,
    "remote.active-protocols": 1,
    "app.update.enabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.page": 0,
}
SECONDS = 120


class Driver:
    """A BiDi session."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self._ws = ws
        self._number = 0

    async def do(self, method: str, **params: Any) -> dict[str, Any]:
        """A command; its result."""
        self._number += 1
        await self._ws.send_json({"id": self._number, "method": method, "params": params})
        while (answer := await self._ws.receive_json()).get("id") != self._number:
            pass
        if answer["type"] != "success":
            raise RuntimeError(f"{method}: {answer}")
        result: dict[str, Any] = answer["result"]
        return result


async def main(folder: Path, url: str, script: str) -> str:
    """What the script says on the page."""
    profile = folder / "profile"
    profile.mkdir()
    prefs = "".join(f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFS.items())
    (profile / "user.js").write_text(prefs)
    firefox = await asyncio.create_subprocess_exec(
        needed.program("firefox-esr", "firefox"), "--headless", "--no-remote", "--profile", str(profile),
        "--remote-debugging-port", "0", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    try:
        async with asyncio.timeout(SECONDS), aiohttp.ClientSession() as http:
            assert firefox.stderr is not None
            while (
                found := re.search(rb"BiDi listening on (ws://\S+)", line := await firefox.stderr.readline())
            ) is None:
                assert line, "Firefox ended"
            reading = asyncio.create_task(firefox.stderr.read())
            async with http.ws_connect(f"{found[1].decode()}/session", max_msg_size=0) as ws:
                driver = Driver(ws)
                await driver.do("session.new", capabilities={})
                context = (await driver.do("browsingContext.getTree"))["contexts"][0]["context"]
                await driver.do("browsingContext.navigate", context=context, url=url, wait="complete")
                done = await driver.do(
                    "script.evaluate", expression=script, target={"context": context}, awaitPromise=True
                )
                if done["type"] != "success":
                    raise RuntimeError(json.dumps(done["exceptionDetails"]))
                await driver.do("browser.close")
            await reading
            return str(done["result"]["value"])
    finally:
        if firefox.returncode is None:
            firefox.kill()
        await firefox.wait()


if __name__ == "__main__":
    print(asyncio.run(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]).read_text())))

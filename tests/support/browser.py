"""PAGE=1, a Chromium on the PATH: pages in it, driven by its own protocol over a WebSocket.

A driver of our own in a page of code, since what is needed of one is small: look, wait, type, and
hear what went wrong.
Source: the DevTools protocol, stable domains Page, Runtime, Network, Log, Emulation, Input.
"""

import asyncio
import base64
import itertools
import json
import os
import shutil
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp

from tests.support.process import PartError, Process, Workspace, wait_until

T = TypeVar("T")

_CALL_TIMEOUT_S = 60.0
"""axe takes its time over 200 rows where others use the machine too."""
_QUIET = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
"""A browser that asks nobody but the page's own address."""


def page_wanted() -> bool:
    """True when PAGE=1 asks for the tests in a browser."""
    return os.environ.get("PAGE", "") == "1"


def program() -> str | None:
    """The browser's program: CHROMIUM, else the one on the PATH."""
    named = os.environ.get("CHROMIUM")
    return named or next(
        filter(
            None,
            map(
                shutil.which,
                ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
            ),
        ),
        None,
    )


class Browser:
    """A headless Chromium with a profile of its own; a context manager that leaves nothing
    behind."""

    def __init__(self) -> None:
        found = program()
        assert found is not None, "no browser: set CHROMIUM, or install the package chromium"
        self._workspace = Workspace("browser")
        profile = self._workspace.path / "profile"
        self._announced = profile / "DevToolsActivePort"
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        self._process = Process(
            "chromium",
            [found, *_QUIET, *sandbox, f"--user-data-dir={profile}", "about:blank"],
            log=self._workspace.path / "log",
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="browser", daemon=True)
        self._session: aiohttp.ClientSession | None = None
        self._pages: list[Page] = []

    def __enter__(self) -> Self:
        self._process.launch()
        self._process.await_ready(
            lambda: self._announced.exists() and len(self._announced.read_text().splitlines()) == 2
        )
        self._thread.start()
        self._session = self.on_loop(self._open_session())
        return self

    async def _open_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self.on_loop(self._session.close())
        self._process.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()
        self._workspace.remove()

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result, done on the thread that speaks with the browser."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    def page(
        self,
        url: str = "about:blank",
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
    ) -> "Page":
        """A new page, gone to `url`."""
        page = self.on_loop(self._new_page())
        self._pages.append(page)
        page.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        page.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        page.send("Emulation.setTimezoneOverride", timezoneId="Asia/Tokyo")
        page.send("Emulation.setFocusEmulationEnabled", enabled=True)
        page.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        page.go(url)
        return page

    def close_pages(self) -> None:
        """Close what was opened."""
        while self._pages:
            self._pages.pop().close()

    async def _new_page(self) -> "Page":
        assert self._session is not None
        port = self._announced.read_text().splitlines()[0]
        async with self._session.put(f"http://127.0.0.1:{port}/json/new?about:blank") as answer:
            target = await answer.json()
        socket = await self._session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)
        page = Page(self, socket)
        await page.open()
        return page


class Page:
    """One page. `problems` holds console errors, exceptions and refusals by policy;
    `requests` the addresses it asked for."""

    def __init__(self, browser: Browser, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._browser, self._socket = browser, socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.problems: list[str] = []
        self.requests: list[str] = []

    async def open(self) -> None:
        """Listen, and switch on what is listened to."""
        self._listening = asyncio.get_running_loop().create_task(self._listen(), name="page")
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self._send(f"{domain}.enable", {})

    async def _listen(self) -> None:
        async for message in self._socket:
            reply = json.loads(message.data)
            if "id" in reply:
                self._answers.pop(reply["id"]).set_result(reply)
            else:
                self._received(reply["method"], reply["params"])

    def _received(self, method: str, reply: dict[str, Any]) -> None:
        match method:
            case "Runtime.exceptionThrown":
                self.problems.append(
                    json.dumps(reply["exceptionDetails"].get("exception", reply))[:400]
                )
            case "Runtime.consoleAPICalled" if reply["type"] in {"error", "warning", "assert"}:
                self.problems.append(json.dumps(reply["args"])[:400])
            case "Log.entryAdded" if reply["entry"]["level"] in {"error", "warning"}:
                self.problems.append(
                    f"{reply['entry']['source']}: {reply['entry']['text']} "
                    f"{reply['entry'].get('url', '')}"
                )
            case "Network.requestWillBeSent":
                self.requests.append(reply["request"]["url"])
            case _:
                pass

    async def _send(self, method: str, params: dict[str, Any]) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        reply = await answer
        if "error" in reply:
            raise PartError(f"{method}: {reply['error']}")
        return reply["result"]

    def send(self, method: str, **params: Any) -> Any:
        """The answer to one command of the protocol."""
        return self._browser.on_loop(self._send(method, params))

    def go(self, url: str) -> None:
        """Leave for `url`; returns when its document is there."""
        self.evaluate("window.left = true")
        failed = self.send("Page.navigate", url=url).get("errorText")
        if failed:
            raise PartError(f"{url}: {failed}")
        wait_until(
            f"{url} is loaded",
            lambda: self.evaluate("window.left !== true && document.readyState === 'complete'"),
        )

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, waited for when it is a promise."""
        reply = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in reply:
            raise AssertionError(
                f"{expression[:200]}: {json.dumps(reply['exceptionDetails'])[:600]}"
            )
        return reply["result"].get("value")

    def wait(self, claim: str, expression: str, *, deadline_s: float = 30.0) -> Any:
        """Returns the expression's value once it is true; raises with what the page shows when the
        time is up."""
        try:
            return wait_until(claim, lambda: self.evaluate(expression), deadline_s=deadline_s)
        except TimeoutError as late:
            raise AssertionError(
                f"{late}; the page shows:\n{self.text()}\nproblems: {self.problems}"
            ) from None

    def text(self) -> str:
        """What can be read on the page."""
        return str(self.evaluate("document.body.innerText"))

    def click(self, selector: str) -> None:
        """A click on the first element that the selector names."""
        x, y = self.evaluate(
            f"(() => {{ const at = document.querySelector({json.dumps(selector)}); "
            "at.scrollIntoView({block: 'center'});"
            " const box = at.getBoundingClientRect(); return [box.x + box.width / 2, box.y + "
            "box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, *, code: int = 0, text: str = "") -> None:
        """A key of the keyboard, by its DOM name."""
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **typed,
            )

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.send("Input.insertText", text=text)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """The page as a PNG; `whole`: as long as it is."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """Close it."""
        self._browser.on_loop(self._close())

    async def _close(self) -> None:
        self._listening.cancel()
        await self._socket.send_json({"id": 0, "method": "Page.close"})
        await self._socket.close()

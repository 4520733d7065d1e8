"""A real browser: Debian's Chromium, driven by chromedriver. It loads nothing from outside this machine."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.support.needs import needs

needs_browser = needs("chromedriver", install="apt-get install chromium chromium-driver")
AXE = Path(__file__).parents[1] / "npm" / "node_modules" / "axe-core" / "axe.min.js"
SCREENSHOTS = os.environ.get("PINWARDEN_SCREENSHOTS")
"""A folder for screenshots of every page that a test opens, for a person to look at."""
_QUIET = (
    "--headless=new",
    "--no-sandbox",  # needed as root, and the pages are our own
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
)


class Browser:
    """One browser with one page."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def show(self, *, width: int, dark: bool, height: int = 900) -> None:
        """Set the size of the page and the colour scheme. A window cannot be narrower than 500 pixels, a page can."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._send("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", {"features": [scheme]})

    def forget(self) -> None:
        """Delete all cookies, also those of other paths."""
        self._send("Network.clearBrowserCookies", {})

    def open(self, url: str) -> None:
        self.messages()
        self.driver.get(url)

    def messages(self) -> list[str]:
        """What the browser complained about since the last call, such as reports of the Content Security Policy."""
        return [str(row["message"]) for row in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def overflow(self) -> int:
        """By how many pixels the page is wider than the screen."""
        return int(self.run("const page = document.documentElement; return page.scrollWidth - page.clientWidth"))

    def find_accessibility_problems(self) -> list[str]:
        """What axe-core finds, with the first elements."""
        self.run(AXE.read_text())
        script = "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done, done)"
        result = self.driver.execute_async_script(script)
        assert "violations" in result, result
        return [
            f"{row['id']}: {row['help']}: {[node['html'][:200] for node in row['nodes'][:3]]}"
            for row in result["violations"]
        ]

    def save_screenshot(self, name: str) -> None:
        """Save the whole page, if screenshots are wanted."""
        if SCREENSHOTS:
            size = self.run("const page = document.documentElement; return [innerWidth, page.scrollHeight]")
            clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], 8000), "scale": 1}
            shot = self._send("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            (Path(SCREENSHOTS) / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    def _send(self, command: str, parameters: dict[str, Any]) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in (*_QUIET, f"--user-data-dir={folder}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        driver.set_page_load_timeout(60)
        driver.set_script_timeout(60)
        yield Browser(driver)
    finally:
        driver.quit()

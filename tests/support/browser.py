"""A headless Chromium that tests open pages in, and move the mouse of."""

from __future__ import annotations

import base64
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def chromium():
    """A `Browser`; tests are skipped where there is no Chromium, or no driver for it."""
    selenium = pytest.importorskip("selenium.webdriver", reason="needs the extra 'browser'")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs Chromium and its driver: apt-get install chromium chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = program
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu",
                     "hide-scrollbars", "disable-background-networking"):  # fmt: skip
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = selenium.ChromeService(driver)
    found = selenium.Chrome(options=options, service=service)
    try:
        yield Browser(found)
    finally:
        found.quit()


class Browser:
    """Pages as people see them: real clicks, moves and keys."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, path, *, width=1200, height=900, scripts=True):
        """Open a file in a window of some size, with or without JavaScript."""
        self._ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.resize(width, height)
        self.driver.get(Path(path).resolve().as_uri())
        self.driver.get_log("browser")  # what was said before is not about this page
        self.driver.refresh()
        return self

    def resize(self, width, height=900):
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip

    def _ask(self, command, **arguments):
        return self.driver.execute_cdp_cmd(command, arguments)

    def run(self, script, *arguments):
        """What a function of JavaScript returns."""
        return self.driver.execute_script(f"return {script}", *arguments)

    # What there is

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def first(self, selector):
        return self.driver.find_element("css selector", selector)

    def visible(self, selector):
        return [each for each in self.all(selector) if each.is_displayed()]

    @property
    def complaints(self):
        """What the console has: errors, and what a policy refused."""
        return [each["message"] for each in self.driver.get_log("browser")
                if each["level"] in ("SEVERE", "WARNING")]  # fmt: skip

    @property
    def requests(self):
        """What the page has asked for, beside itself."""
        entries = "performance.getEntriesByType('resource').map(e => e.name)"
        return [name for name in self.run(entries) if not name.startswith("data:")]

    @property
    def overflow(self):
        """By how many pixels the page is wider than the window."""
        return self.run(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    @property
    def broken_images(self):
        """Images that were not loaded, or have no size."""
        return self.run("""(async () => {
            const found = [];
            for (const each of document.querySelectorAll("img, image")) {
                const image = new Image();
                image.src = each.currentSrc || each.src || each.getAttribute("href");
                const loaded = await image.decode().then(() => true, () => false);
                if (!loaded || !image.naturalWidth) found.push(image.src.slice(0, 80));
            }
            return found;
        })()""")

    # What people do

    def hover(self, element, x=0.5, y=0.5):
        """Move the mouse over a part of an element, in shares of its size."""
        self._mouse(element, (x, y))

    def click(self, element, x=0.5, y=0.5):
        self._mouse(element, (x, y), "click")

    def double_click(self, element, x=0.5, y=0.5):
        self._mouse(element, (x, y), "double_click")

    def drag(self, element, begin, end):
        """Press the mouse at one place of an element and release it at another."""
        self._mouse(element, begin, "pointer_down")
        self._mouse(element, end, "pointer_up")

    def press(self, *keys):
        """Keys, to what has the focus."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def _mouse(self, element, at, action=None):
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        left, top, width, height = self._box(element)
        builder = ActionBuilder(self.driver, duration=30)
        mouse = builder.pointer_action
        mouse.move_to_location(round(left + at[0] * width), round(top + at[1] * height))
        if action is not None:
            getattr(mouse, action)()
        builder.perform()

    def _box(self, element):
        """Where an element is in the window, once it is in the middle of it."""
        return self.driver.execute_async_script(
            """
            const [each, done] = arguments, box = each.getBoundingClientRect();
            if (box.top < 0 || box.bottom > innerHeight) {
                each.scrollIntoView({block: "center", behavior: "instant"});
            }
            requestAnimationFrame(() => requestAnimationFrame(() => {
                const now = each.getBoundingClientRect();
                done([now.left, now.top, now.width, now.height]);
            }));""", element,
        )  # fmt: skip

    # What people keep

    def screenshot(self, path, height=None):
        """The window, or as much of the page as fits into some height."""
        if height is not None:
            self.resize(self.run("innerWidth"), height)
        Path(path).write_bytes(self.driver.get_screenshot_as_png())

    def printed(self):
        """The page as a PDF file."""
        return base64.b64decode(self.driver.print_page())

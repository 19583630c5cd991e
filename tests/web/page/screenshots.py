"""Pictures of the page for the documentation, from a running server.

::

    python -m tests.web.page.screenshots docs/screenshots http://127.0.0.1:8000

The server must have answered some requests with drafts, so that its chart has something to show.

Needs Pillow, which comes with matplotlib (extra ``bench``).
"""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path

from PIL import Image

from tests.web.page.browser import Page, browser

MOST_BYTES = 100 * 1000


def prepare(page: Page, address: str, width: int, scheme: str = "light") -> None:
    """The page, opened anew, for a viewport and a colour scheme."""
    page.resize(width, 900, phone=width < 600)
    page.prefer(prefers_color_scheme=scheme)
    page.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    page.open(address)
    page.fill("seed", "7")
    page.until(lambda: page.all("#chart svg"), "the chart is drawn")


def take(page: Page, path: Path, last: str = "footer") -> None:
    """Save the page as PNG, from its top to the end of a part."""
    page.script("document.activeElement.blur(); scrollTo(0, 0)")
    width, end = page.script(
        "const { bottom } = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return [window.innerWidth, bottom]",
        last,
    )
    clip = {"x": 0, "y": 0, "width": width, "height": end + 12, "scale": 1}
    shot = page.driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "clip": clip, "captureBeyondViewport": True}
    )
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    picture.quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{path}: {size} bytes, over {MOST_BYTES}")
    print(f"{path}: {size // 1024} KiB")


def main(folder: Path, address: str) -> None:
    """Take all pictures of a server into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as page:
        for name, width, scheme in (
            ("desktop", 1100, "light"),
            ("phone", 360, "light"),
            ("dark", 1100, "dark"),
        ):
            prepare(page, address, width, scheme)
            page.part("ask").click()
            page.until(page.part("ask").is_enabled, "the answer ends", 120)
            page.ended()
            take(page, folder / f"{name}.png")
        prepare(page, address, 1100)
        page.part("race").click()
        ended = ".column[data-state=done]"
        page.until(lambda: len(page.all(ended)) == 2, "the race ends", 240)
        page.ended(2)
        if "equal" not in page.text("verdict"):
            raise SystemExit(page.text("verdict"))
        take(page, folder / "race.png", last="#verdict")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

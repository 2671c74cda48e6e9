"""Take the picture of the page for docs/ from a running server.

tf-transformer serve saved_models/demo
python dev/screenshot.py http://127.0.0.1:8501 docs/images/page.png
"""

import argparse
import io
import pathlib
import shutil

from PIL import Image
from playwright.sync_api import expect, sync_playwright

TEXT = """\
Gestern hat meine Nachbarin den Schlüssel gefunden. Morgen möchten wir ein neues Auto kaufen.

Warum hast du am Montag den Lehrer angerufen? Ich rufe meine Mutter an, wenn ich müde bin."""


def screenshot(url: str) -> bytes:
    """Return the page as a PNG, with a translated text and the pointer on its fourth word."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(
            viewport={"width": 1280, "height": 720}, color_scheme="light", reduced_motion="reduce"
        )
        page.goto(url)
        page.fill("#source", TEXT)
        sentence = page.locator("#output .sentence").first
        sentence.click()
        expect(page.get_by_role("radio").first).to_be_visible()
        sentence.locator(".word").nth(3).hover()
        # Without the focus, two pictures differ only in the milliseconds that the page shows.
        page.locator("#source").blur()
        picture = page.screenshot()
        browser.close()
    return picture


def main() -> None:
    """Take a picture and write it with few colours."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("path", type=pathlib.Path)
    options = parser.parse_args()
    picture = Image.open(io.BytesIO(screenshot(options.url))).convert("RGB")
    picture.quantize(128, dither=Image.Dither.NONE).save(options.path, optimize=True)
    print(f"{options.path}: {options.path.stat().st_size} bytes")


if __name__ == "__main__":
    main()

"""Takes the picture of the page in docs/ from a running server.

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


def screenshot(url: str, options: argparse.Namespace) -> bytes:
    """Returns the page as a PNG, with a translated text and the pointer on one word."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(
            viewport={"width": options.width, "height": options.height},
            color_scheme="dark" if options.dark else "light",
            reduced_motion="reduce",
        )
        page.goto(url)
        page.fill("#source", options.text)
        sentence = page.locator("#output .sentence").nth(options.sentence)
        sentence.click()
        expect(page.get_by_role("radio").first).to_be_visible()
        sentence.locator(".word").nth(options.word).hover()
        # Without the focus, two pictures differ only in the milliseconds.
        page.locator("#source").blur()
        picture = page.screenshot(full_page=options.full)
        browser.close()
    return picture


def main() -> None:
    """Takes a picture and writes it with few colours."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--sentence", type=int, default=0, help="the one that is chosen")
    parser.add_argument("--word", type=int, default=3, help="the one under the pointer")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=720)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--full", action="store_true", help="all of the page, not one window")
    options = parser.parse_args()
    picture = Image.open(io.BytesIO(screenshot(options.url, options))).convert("RGB")
    picture.quantize(128, dither=Image.Dither.NONE).save(options.path, optimize=True)
    print(f"{options.path}: {options.path.stat().st_size} bytes")


if __name__ == "__main__":
    main()

"""The page of the local server of a stub, in a real Chromium."""

import re
import shutil

import pytest
import stub_server

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium")

MODEL = 'de & "en"'
SENTENCE = "Wo ist der Bahnhof?"
THREE = "Wo ist er? Er ist da.\n\n  Das ist  gut.\n\nEnde.\n"
expect = sync_api.expect
# Other tests may have all cores.
PATIENCE = 30_000
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def served(tmp_path, request):
    """The server, whose model has a difficult name and the version 7, and the model."""
    limits = getattr(request, "param", {})
    with stub_server.serving(tmp_path, name=MODEL, number=7, **limits) as served:
        yield served


@pytest.fixture
def model(served):
    return served[1]


@pytest.fixture
def open_page(browser, served):
    """Opens the page in a new window. At the end, nothing but this server was asked."""
    contexts, asked, problems = [], [], []
    address = f"{served[0].address}/"

    def open_page(**options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        context.on("request", lambda request: asked.append(request.url))
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert asked and all(url.startswith(address) for url in asked)
    # The tests of errors let requests fail; all else, such as a refused style, is a fault.
    assert [text for text in problems if "Failed to load resource" not in text] == []


@pytest.fixture
def page(open_page):
    return open_page()


def write(page, text):
    """Fills the text area and waits for the translation."""
    page.fill("#source", text)
    expect(page.locator("#output")).to_have_text(text.upper(), use_inner_text=True)


def lit(page, place):
    """The words with a line under them, and those with a line around them."""
    return [page.locator(f"{place} .{name}").all_text_contents() for name in ("lit", "picked")]


def documents(model):
    """The texts of each request for a translation."""
    return [texts for signature, texts in model.asked if signature == "translate_document"]


def refuse(page, status):
    """Lets every prediction be refused."""
    refusal = {"error": "what the <server> says"}
    page.route("**/*:predict", lambda route: route.fulfill(status=status, json=refusal))


# Translation


def test_a_translation_follows_a_pause(page, model):
    expect(page).to_have_title(MODEL)
    expect(page.locator("header")).to_have_text(re.compile(r"version 7$"))
    page.clock.install(time=0)
    page.clock.pause_at(3600)
    page.focus("#source")
    for letter in "Wo ist":
        page.keyboard.press(letter)
        page.clock.run_for(300)
    assert model.asked == []
    page.clock.resume()
    expect(page.locator("#output")).to_have_text("WO IST")
    expect(page.locator("#spoken")).to_have_text("WO IST")
    expect(page.locator("#time")).to_have_text(re.compile(r"^\d+ ms$"))
    assert documents(model) == [["Wo ist"]]


def test_a_text_from_before_the_page_knows_the_model_is_asked_once(page, model):
    held = []
    page.route("**/metadata", lambda route: held.append(route))
    with page.expect_request("**/metadata"):
        page.reload()
    page.fill("#source", SENTENCE)
    model.delays["translate_nbest"] = 1  # longer than the pause after typing
    held[0].continue_()
    expect(page.get_by_role("radio")).to_have_count(3)
    assert [name for name, _ in model.asked].count("translate_nbest") == 1


def test_paragraphs_keep_their_layout_and_only_changed_lines_are_asked_again(page, model):
    write(page, THREE)
    assert page.locator("#output").text_content() == THREE.upper()
    assert page.locator("#output .sentence").all_text_contents() == [
        "WO IST ER?", "ER IST DA.", "DAS IST  GUT.", "ENDE."
    ]  # fmt: skip
    asked = [["Wo ist er? Er ist da.", "  Das ist  gut.", "Ende."]]
    assert documents(model) == asked
    write(page, THREE.replace("Ende", "Schluss"))
    assert documents(model) == [*asked, ["Schluss."]]


@pytest.mark.slow
def test_copy_takes_the_translation(open_page):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    expect(page.locator("#copy")).to_be_disabled()
    write(page, THREE)
    page.click("#copy")
    expect(page.locator("#copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == THREE.upper()


@pytest.mark.slow
def test_a_new_version_of_the_model_is_asked_again(page, served):
    server, model = served
    write(page, SENTENCE)
    server.version.number = 8
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#version")).to_have_text("version 8")
    page.wait_for_timeout(100)
    assert documents(model) == [[SENTENCE], [SENTENCE]]


def test_what_the_model_knows_is_said(open_page, served):
    served[0].version.manifest = {"languages": ["deu", "en"]}
    page = open_page()
    expect(page.locator("#source-title")).to_have_text("German text")
    expect(page.locator("#output-title")).to_have_text("English translation")
    expect(page.locator("#source")).to_have_attribute("placeholder", re.compile(r"Brot kaufen\?$"))
    page.get_by_role("button", name="Example").click()
    expect(page.locator("#output")).to_have_text("WO KANN ICH BROT KAUFEN?")
    expect(page.get_by_role("button", name="Example")).to_be_hidden()


@pytest.mark.parametrize(
    "known",
    [{}, *({"languages": [*ends, "de"]} for ends in ([], [""], ["txt"], ["source"], ["a_b"]))],
)
def test_what_nobody_knows_is_not_said(open_page, served, known):
    served[0].version.manifest = known
    page = open_page()
    expect(page.locator("#source-title")).to_have_text("Text")
    expect(page.get_by_role("button", name="Example")).to_be_hidden()
    expect(page.locator("footer")).to_contain_text("invented translation")


# Alignment


@pytest.mark.parametrize("over", ["#mirror", "#output", "#drawing"])
def test_hovering_a_word_lights_its_partners(page, over):
    write(page, SENTENCE)
    page.locator("#output .sentence").hover()
    expect(page.locator("#output .word")).to_have_count(4)
    partner = page.locator("#mirror .lit" if over == "#output" else "#output .lit")
    for _ in range(50):  # the words of the drawing may still move
        word = page.locator(f"{over} .word", has_text="Bahnhof").first.bounding_box()
        page.mouse.move(word["x"] + word["width"] / 2, word["y"] + word["height"] / 2)
        if partner.count():
            break
        page.wait_for_timeout(100)
    expect(partner).to_have_text(re.compile("Bahnhof", re.IGNORECASE))
    assert partner.evaluate("e => e.style.getPropertyValue('--strength')") == "0.900"
    assert "underline" in partner.evaluate("e => getComputedStyle(e).textDecoration")
    expect(page.locator("#partners")).to_have_text(re.compile("Bahnhof.* 90 %", re.IGNORECASE))
    expect(page.locator("#drawing path")).to_have_count(4)
    expect(page.locator("#drawing path.on")).to_have_count(1)
    page.mouse.move(5, 5)
    expect(page.locator(".lit, .picked")).to_have_count(0)


@pytest.mark.slow
def test_the_caret_lights_the_partners_of_its_word(page):
    write(page, "Wo ist er? Er ist")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#output .lit")).to_have_text("IST")
    page.keyboard.press("End")
    page.keyboard.type(" da.")
    expect(page.locator("#drawing .row").nth(1)).to_have_text("ERISTDA.")
    assert lit(page, "#texts") == [[], []], "typing lights nothing"
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("#output .lit")).to_have_text("IST")
    page.keyboard.press("Home")
    expect(page.locator("#output .lit")).to_have_text("WO")
    expect(page.locator("#place-title")).to_have_text("Sentence 1 of 2")


def test_words_are_reached_with_tab_and_arrow_keys(page):
    write(page, SENTENCE)
    rows = page.locator("#drawing .row")
    first = rows.nth(0).locator("button").nth(0)
    expect(rows.nth(1).locator("button")).to_have_count(4)
    for _ in range(2):  # Copy, the first word
        page.keyboard.press("Tab")
    expect(first).to_be_focused()
    for key, row, index in (
        ("ArrowRight", 0, 1), ("ArrowDown", 1, 1), ("End", 1, 3), ("ArrowRight", 1, 3),
        ("ArrowUp", 0, 3), ("ArrowLeft", 0, 2), ("Home", 0, 0),
    ):  # fmt: skip
        page.keyboard.press(key)
        expect(rows.nth(row).locator("button").nth(index)).to_be_focused()
    assert lit(page, "#output") == [["WO"], []]
    expect(first).to_have_accessible_name(re.compile(r"^\W?Wo\W?: \W?WO\W? 90 %$"))
    expect(first).to_have_css("outline-style", "solid")


@pytest.mark.slow
def test_subwords_become_words(page):
    """Bytes, scripts without spaces, an end of sentence, and a subword that is one space."""
    emoji = ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    subwords = ["▁Bahn", "hof", "▁", *emoji, "!", "▁我", "们", "▁", "</s>"]
    words = page.evaluate("(subwords) => wordsOf(subwords)", subwords)
    assert [(word["text"], word["indices"]) for word in words] == [
        ("Bahnhof", [0, 1]), ("😀!", [2, 3, 4, 5, 6, 7]), ("我", [8]), ("们", [9]),
    ]  # fmt: skip


# n-best


def test_an_alternative_can_be_chosen(page, model):
    write(page, SENTENCE)
    options = page.get_by_role("radio")
    expect(options).to_have_count(3)  # a hypothesis that does not exist is no alternative
    expect(options.nth(0)).to_be_checked()
    expect(page.locator("#alternatives small").nth(2)).to_have_text("−1.75")
    options.nth(0).focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#output")).to_have_text(SENTENCE.upper() + "!")
    expect(options.nth(1)).to_be_focused()
    expect(page.locator("#drawing .row").nth(1)).to_have_text("WOISTDERBAHNHOF?!")
    assert [name for name, _ in model.asked].count("translate_nbest") == 1
    options.nth(0).check()
    expect(page.locator("#output")).to_have_text(SENTENCE.upper())


def test_a_sentence_that_is_too_long_keeps_all_of_its_translation(page):
    """Alternatives would have its beginning only, and choosing one would drop the rest."""
    write(page, f"{SENTENCE} {'wort ' * 60}.")
    expect(page.locator("#alternatives .note")).to_contain_text("too long")
    expect(page.locator("#alignment .note")).to_contain_text("beginning")
    expect(page.get_by_role("radio")).to_have_count(0)
    page.get_by_role("button", name="Previous").click()
    expect(page.get_by_role("radio")).to_have_count(3)
    expect(page.locator(".note:visible")).to_have_count(0)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["align", "translate_nbest", "translate_document"])
def test_a_model_without_a_signature_has_the_rest(open_page, model, missing):
    del model.signatures[missing]
    page = open_page()
    write(page, SENTENCE)
    page.locator("#output .sentence").hover()
    expect(page.locator("#alignment")).to_be_visible(visible=missing != "align")
    expect(page.locator("#alternatives")).to_be_visible(visible=missing != "translate_nbest")
    assert missing not in [name for name, _ in model.asked]


# Errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "words"), [(429, "busy"), (500, "could not"), (503, "not ready")]
)
def test_an_error_is_said_in_plain_words_and_can_be_tried_again(page, status, words):
    refuse(page, status)
    page.fill("#source", SENTENCE)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text(words)
    expect(alert).to_contain_text("what the <server> says")
    page.unroute("**/*:predict")
    alert.get_by_role("button").click()
    expect(page.locator("#output")).to_have_text(SENTENCE.upper())
    expect(alert).to_be_hidden()


@pytest.mark.parametrize("status", [400, 403, 413])
def test_what_would_be_refused_again_is_not_tried_again(page, status):
    refuse(page, status)
    page.fill("#source", SENTENCE)
    expect(page.get_by_role("alert")).to_contain_text("what the <server> says")
    expect(page.get_by_role("button", name="Try again")).to_be_hidden()


@pytest.mark.parametrize("served", [{"max_characters": 30, "max_texts": 2}], indirect=True)
def test_the_limits_of_the_server_are_kept_and_said(page, model):
    write(page, THREE)
    assert all(len(texts) <= 2 and len("".join(texts)) <= 30 for texts in documents(model))
    page.fill("#source", "x" * 31)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("30 characters: shorten it")
    expect(page.get_by_role("button", name="Try again")).to_be_hidden()
    write(page, "x" * 30)  # the alignment would have the characters of both sides
    expect(page.locator("#alignment .note")).to_be_visible()
    expect(alert).to_be_hidden()


def test_a_server_that_is_gone_is_reported(page):
    write(page, SENTENCE)
    page.context.set_offline(True)
    page.fill("#source", "Ja")
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    expect(page.locator("#output")).to_be_empty()  # the old one would be of another text
    page.context.set_offline(False)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#output")).to_have_text("JA")


# Any text, window and reader

HOSTILE = "<script>hacked = 1</script><img src=x onerror=hacked=1> &amp; {{model}} 😀 \u202eabc"


def test_a_hostile_text_is_shown_as_text(page):
    write(page, HOSTILE)
    page.locator("#output .sentence").hover()
    expect(page.get_by_role("radio")).to_have_count(3)
    assert page.locator("#output").text_content() == HOSTILE.upper()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main img").count() == 0


@pytest.mark.slow
def test_text_from_right_to_left(page):
    write(page, "أين المحطة الكبيرة؟")
    direction = "e => getComputedStyle(e).direction"
    for place in ("#source", "#mirror", "#output"):
        assert page.locator(place).evaluate(direction) == "rtl"
    words = page.locator("#drawing .row").nth(0).locator("button")
    words.nth(0).focus()
    page.keyboard.press("ArrowLeft")
    expect(words.nth(1)).to_be_focused()


@pytest.mark.slow
def test_marks_lie_behind_the_words_of_the_text_area(page):
    """The text area and its mirror wrap the same text into the same number of lines."""
    write(page, "Donaudampfschifffahrtsgesellschaft und  so\tweiter\n" * 12 + "x" * 200 + "\n\n")
    heights = page.evaluate("[source.scrollHeight, source.clientHeight, mirror.clientHeight]")
    assert len(set(heights)) == 1 and heights[0] > 400


@pytest.mark.slow
@pytest.mark.parametrize("text", [THREE, "x" * 300])
def test_a_phone_has_no_horizontal_scrolling(open_page, text):
    page = open_page(viewport={"width": 360, "height": 740})
    write(page, text)
    expect(page.locator("#drawing path").first).to_be_attached()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    # The sections, since a text higher than its section is scrolled in it.
    boxes = [page.locator("#texts section").nth(number).bounding_box() for number in (0, 1)]
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"], "the texts are below each other"


def test_every_control_has_a_name(page):
    write(page, THREE)
    expect(page.get_by_role("radio")).to_have_count(3)
    snapshot = page.locator("body").aria_snapshot()
    controls = re.findall(r"- '?((?:button|textbox|radio|group|region|heading)\b[^\n]*)", snapshot)
    assert len(controls) > 12 and all('"' in control for control in controls), snapshot
    expect(page.locator("#source")).to_have_accessible_name("Text")
    assert page.locator("#spoken").get_attribute("aria-live") == "polite"

"""The page on which a person labels samples: what is in the file, and what a real browser makes of it."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
import time
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image

import safda
from safda.cli import main
from safda.data import load_domain
from safda.report.label_page import label_page, previews_of
from tests.conftest import TINY, blobs

EVIL = "<script>document.title='pwned'</script>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER and find_spec("selenium")), reason="there is no chromium with its driver, or no selenium"
)


def listed(count, **more):
    return {"id": [f"sample {k}" for k in range(count)], "class": ["x"] * count, **more, "label": [""] * count}


# ------------------------------------------------------------------------------------------------------- the file


def test_the_page_asks_nothing_of_a_network_and_lets_no_other_script_run():
    page = label_page(listed(2), ["cat", "dog"], [{}, {}])
    assert not re.findall(
        r"(?:src|href)\s*=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)",
        page.replace("link.href =", "").replace("picture.src =", ""),
    )
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy


def test_what_others_wrote_is_data():
    columns = {**listed(1), "id": [EVIL], "class": ["</script><b>"]}
    page = label_page(columns, [EVIL, "a&b"], [{}], file=f"{EVIL}.csv")
    assert EVIL not in page
    assert page.count("<script") == 2
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    assert data["samples"][0]["name"] == EVIL
    assert [each["name"] for each in data["classes"]] == [EVIL, "a&b"]


def test_a_picture_is_upright_and_whole_and_numbers_are_told(tmp_path):
    wide = Image.new("RGB", (64, 32), "red")
    exif = wide.getexif()
    exif[0x0112] = 6
    wide.save(tmp_path / "a.jpg", exif=exif)
    shown = previews_of(load_domain([tmp_path / "a.jpg"]), [0])[0]["picture"]
    assert shown.startswith("data:image/jpeg;base64,")
    picture = Image.open(io.BytesIO(base64.b64decode(shown.split(",")[1])))
    assert picture.size == (256, 512)
    numbers = previews_of(load_domain(np.arange(300.0).reshape(2, 150)), [1])[0]
    assert numbers["values"][:2] == [150, 151]
    assert len(numbers["values"]) == 64
    assert numbers["told"].startswith("150 numbers from 150 to 299; the first ones are 150, 151")
    digit = previews_of(load_domain("digits-handwritten"), [3])[0]
    assert digit["pixels"]
    assert digit["picture"].startswith("data:image/png")


# ---------------------------------------------------------------------------------------------------- the browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver

    downloads = tmp_path_factory.mktemp("downloads")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1000,800"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.downloads = downloads
    yield driver
    driver.quit()


class Page:
    """A page in a browser, and what a person does there."""

    def __init__(self, browser, path):
        self.browser, self.path = browser, path
        self.open()

    def open(self):
        self.browser.get(f"file://{self.path}")

    def come_back(self):
        """Open it in another tab, with what it wrote down for whoever comes back.

        That is put there before the page's own script runs: a browser under load may take its time to show one tab what
        another wrote, and what is asked here is what the page writes, and makes of it, not when a browser saves it.
        """
        written = json.dumps(self.browser.execute_script("return {...localStorage}"))
        restore = f"for (const [key, value] of Object.entries({written})) localStorage.setItem(key, value);"
        self.browser.switch_to.new_window("tab")
        script = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": restore})
        self.open()
        self.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)

    def press(self, *keys):
        self.browser.switch_to.active_element.send_keys(*keys)

    def text(self, name):
        return self.browser.find_element("id", name).text

    def classes(self):
        return [each.text.split("\n")[-1] for each in self.browser.find_elements("css selector", "#classes button")]

    def saved(self, name):
        """Save, and read what came of it."""
        file = self.browser.downloads / name
        file.unlink(missing_ok=True)
        self.browser.find_element("id", "save").click()
        for _ in range(600):
            if file.exists() and file.stat().st_size:
                return list(csv.DictReader(file.open(newline="")))
            time.sleep(0.1)
        raise AssertionError("nothing was saved")

    def complaints(self):
        return self.browser.get_log("browser")


@pytest.fixture
def opened(browser, tmp_path):
    def opened(columns, classes, previews=None, file="labels.csv"):
        path = tmp_path / "page.html"
        path.write_text(label_page(columns, classes, previews or [{}] * len(columns["id"]), file))
        return Page(browser, path)

    return opened


@needs_browser
def test_few_classes_have_a_key_each_and_answers_can_be_taken_back(opened):
    columns = listed(4, confidence=[0.5, 0.25, 1.0, 0.125])
    page = opened(columns, ["cat", "dog", 'mouse, "wild"'])
    page.press("2")
    assert page.text("count") == "1 of 4 labelled"
    assert "Sample 2 of 4: sample 1" in page.text("status")
    page.press("3")
    page.press("\ue003")  # Backspace
    assert page.text("count") == "1 of 4 labelled"
    assert "Taken back. Sample 2" in page.text("status")
    page.press("3")
    page.press("\ue014")  # →: this one cannot be told
    page.press("-")
    assert page.text("count") == "3 of 4 labelled"
    rows = page.saved("labels.csv")
    assert [row["label"] for row in rows] == ["dog", 'mouse, "wild"', "", "(other)"]
    assert [{key: row[key] for key in ("id", "class", "confidence")} for row in rows] == [
        {"id": each, "class": "x", "confidence": str(sure)}
        for each, sure in zip(columns["id"], columns["confidence"], strict=True)
    ]
    assert page.complaints() == []


@needs_browser
def test_of_many_classes_one_types_the_name(opened):
    page = opened(listed(3), [f"class {k}" for k in range(30)] + ["bike", "bookcase", "notebook"])
    page.press("b")
    assert page.classes() == ["bike", "bookcase", "notebook"]  # what begins so comes first
    page.press("oo")
    assert page.classes() == ["bookcase", "notebook"]
    page.press("\ue015", "\ue007")  # ↓ and Enter
    assert "notebook. Sample 2" in page.text("status")
    page.press("zzz")
    assert "No class is called so" in page.text("status")
    page.press("\ue00c", "bik", "\ue007")  # Escape
    page.press("class 12", "\ue007")
    assert "All are labelled" in page.text("status")
    assert [row["label"] for row in page.saved("labels.csv")] == ["notebook", "bike", "class 12"]
    assert page.complaints() == []


@needs_browser
def test_whoever_comes_back_goes_on(opened):
    page = opened(listed(5), ["yes", "no"])
    page.press("1")
    page.press("2")
    assert page.text("count") == "2 of 5 labelled"
    page.come_back()
    assert page.text("count") == "2 of 5 labelled"
    assert "Sample 3 of 5" in page.text("status")
    page.press("\ue009z")  # Ctrl+Z, of before
    assert page.text("count") == "1 of 5 labelled"
    other = opened(listed(6), ["yes", "no"])  # another list is another
    assert other.text("count") == "0 of 6 labelled"


@needs_browser
def test_a_script_in_a_name_stays_text(opened):
    page = opened({**listed(2), "id": [EVIL, "b"]}, [EVIL, "<img src=x onerror=alert(1)>"])
    assert page.text("name") == EVIL
    assert page.classes() == [f"1 {EVIL}", "2 <img src=x onerror=alert(1)>"]
    page.press("1")
    assert page.browser.title == "Label samples"
    assert page.browser.find_elements("css selector", "#classes img, #name script") == []
    assert page.saved("labels.csv")[0] == {"id": EVIL, "class": "x", "label": EVIL}
    assert page.complaints() == []


@needs_browser
def test_keys_are_the_classes_own_where_they_are_one_letter(opened):
    page = opened(listed(2), list("0123456789"))
    page.press("7")
    page.press("0")
    assert [row["label"] for row in page.saved("labels.csv")] == ["7", "0"]


def contrast(browser, element):
    """Contrast of text and what is behind it, as WCAG has it."""
    colours = browser.execute_script(
        """let at = arguments[0]; const ink = getComputedStyle(at).color;
        while (getComputedStyle(at).backgroundColor === 'rgba(0, 0, 0, 0)') at = at.parentElement;
        return [ink, getComputedStyle(at).backgroundColor]""",
        element,
    )
    levels = []
    for colour in colours:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        levels.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    return (max(levels) + 0.05) / (min(levels) + 0.05)


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_light_and_dark_on_a_phone_and_by_a_screen_reader(opened, browser, scheme):
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        page = opened({**listed(2), "id": ["a" * 200, "b"]}, ["cat", "a_class_with_a_rather_long_name" * 3])
        for selector in ("h1", "#status", "#name", "#classes button", "#save", "#count"):
            assert contrast(browser, browser.find_element("css selector", selector)) > 4.5, selector
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
        assert browser.find_element("css selector", "#classes button").size["height"] >= 44
        assert browser.find_element("id", "status").aria_role == "status"
        assert browser.find_element("id", "progress").accessible_name == "labelled so far"
        assert browser.find_element("css selector", "#classes button").accessible_name.endswith("cat")
        assert page.browser.find_element("css selector", "html").get_attribute("lang") == "en"
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@needs_browser
def test_from_a_run_to_an_estimate(browser, tmp_path, capsys):
    for name, seed, shift in (("source", 0, 0.0), ("target", 1, 1.5)):
        features, labels = blobs(seed, shift)
        np.savez(tmp_path / f"{name}.npz", features=features, labels=labels, classes=np.array(["ant", "bee", "cat"]))
    ends = tmp_path / "source.npz", tmp_path / "target.npz"
    safda.fit(*ends, out=tmp_path / "run", cpu=True, **{**TINY, "steps": 5})
    file, html = tmp_path / "labels.csv", tmp_path / "page.html"
    assert main(["label", str(tmp_path / "run"), "--n", "12", "-o", str(file), "--page", str(html)]) == 0
    page = Page(browser, html)
    names = [row["id"] for row in csv.DictReader(file.open())]
    assert "6 numbers from" in page.text("preview")
    for each in names:
        assert page.text("name") == each
        page.press(str(int(labels[int(each)]) + 1))
    page.saved("labels.csv")
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), str(browser.downloads / "labels.csv")]) == 0
    assert json.loads(capsys.readouterr().out)["labels"] == 12
    assert page.complaints() == []

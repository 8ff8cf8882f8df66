"""The report in a real browser: Debian's chromium, through its driver."""

from __future__ import annotations

import base64
import io
import shutil
import time

import numpy as np
import pytest
from PIL import Image

import safda
from safda.report.write import write_report
from safda.text import printable
from safda.training.checkpoint import RunFolder
from tests.conftest import TINY
from tests.test_pictures import COLOURS, content, noise, write

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.actions.action_builder import ActionBuilder  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="there is no browser: apt-get install chromium chromium-driver"
)

#: A folder's name can hold all but a slash.
HOSTILE = "<img src=x onerror=hacked=1>\x1b[31m"
NAMES = {"bee": HOSTILE, "ant": "ant", "cat": "cat"}  # in the order in which folders are read
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # a root's browser has none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
#: The contrast of every text that is seen with what lies behind it, as WCAG 2 has it, and whose it is.
CONTRASTS = """
const square = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
const pen = square.getContext("2d", {willReadFrequently: true});
const over = (colour, under) => {
  for (const fill of [under, colour]) { pen.fillStyle = fill; pen.fillRect(0, 0, 1, 1); }
  return `rgb(${[...pen.getImageData(0, 0, 1, 1).data].slice(0, 3)})`;
};
const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const luminance = (rgb) => rgb.match(/\\d+/g).map((c) => linear(c / 255))
  .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
const behind = (element) => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) {
    const style = getComputedStyle(e);
    const gradient = style.backgroundImage.match(/^linear-gradient.(rgba?\\([^)]*\\))/);
    layers.push(...(gradient ? [gradient[1]] : []), style.backgroundColor);
  }
  return layers.reverse().reduce((under, layer) => over(layer, under), "rgb(255,255,255)");
};
const holdsText = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
return [...document.querySelectorAll("body *")]
  .filter((e) => e.checkVisibility({visibilityProperty: true}) && holdsText(e))
  .filter((e) => !e.closest("svg, .visually-hidden, .skip, option"))
  .map((e) => {
    const ground = behind(e);
    const [dark, light] = [over(getComputedStyle(e).color, ground), ground].map(luminance).sort((a, b) => a - b);
    return [(light + 0.05) / (dark + 0.05), `${e.tagName}.${e.className}: ${e.textContent.slice(0, 40)}`];
  });
"""


def pictures(root, seed):
    for k, (name, own_folder) in enumerate(NAMES.items()):
        for i in range(8):
            colour = np.multiply(COLOURS[name], 0.4 + 0.1 * i)  # no two are alike
            picture = content(noise(colour, (48, 40), seed + 100 * k + i), "JPEG", quality=90)
            write(root / own_folder / f"{i}.jpg", picture)
    return root


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two runs on folders of pictures, whose classes are colours."""
    home = tmp_path_factory.mktemp("browser")
    both = pictures(home / "source", 0), pictures(home / "target", 5000)
    small = {"network.backbone": "small-cnn", "network.pretrained": False, "network.image_size": 32, "steps": 12}
    for seed in (0, 1):
        safda.fit(*both, out=home / f"run{seed}", cpu=True, seed=seed, **{**TINY, **small})
    return home


@pytest.fixture(scope="module")
def both(home):
    """One page on both runs, with labels, and with all that others may put into a summary."""
    run = RunFolder.open(home / "run1")
    finding = {"title": "a finding", "evidence": "seen", "advice": "do", "severity": "serious"}
    more = {"estimate": {"accuracy": 0.8, "low": 0.7, "high": 0.9, "level": 0.9, "method": "m"}, "diagnosis": [finding]}
    run.save_summary({**run.summary, **more, "theory": {"mdd": {"before": 1.0, "after": 0.5, "what": "d̂"}}})
    return write_report([home / "run0", home / "run1"], home / "both.html", labels=home / "target")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(120)
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, home):
    return opened(browser, home / "run0" / "report.html")


def opened(browser, path, width=1200, height=900, theme="light"):
    wishes = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}  # so that it scrolls at once
    media = {"media": "", "features": [{"name": name, "value": value} for name, value in wishes.items()]}
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.resolve().as_uri())
    browser.execute_script("localStorage.clear(); scrollTo(0, 0)")
    return browser


def find(page, selector):
    return page.find_element("css selector", selector)


def column(page, table, number):
    rows = page.find_elements("css selector", f"{table} tbody tr")
    return [row.find_elements("css selector", "th, td")[number].text for row in rows]


def press(page, *keys):
    webdriver.ActionChains(page).send_keys(*keys).perform()


def place_of(page, sample, view=0):
    """Where a sample is in the window, scrolled into it; in whole pixels."""
    return page.execute_script(
        """
        const view = document.querySelector(".map").views[arguments[1]];
        view.canvas.scrollIntoView({block: "center"});
        const box = view.canvas.getBoundingClientRect(), [x, y] = view.place(arguments[0]);
        return [Math.round(box.left + x), Math.round(box.top + y)];
        """,
        sample,
        view,
    )


def point_at(page, sample, view=0):
    """Move the pointer onto a sample until it is told of: while the page still scrolls, the sample's place changes.

    Each try comes from elsewhere: a pointer that is there already tells the page nothing.
    """
    for _ in range(100):
        (x, y), tip = place_of(page, sample, view), find(page, "#tip")
        actions = ActionBuilder(page)
        actions.pointer_action.move_to_location(0, 0).move_to_location(x, y)
        actions.perform()
        if tip.is_displayed() and tip.text and place_of(page, sample, view) == [x, y]:
            return
        time.sleep(0.1)
    raise AssertionError(f"sample {sample} was pointed at, and nothing was told of it")


def in_time(value, expected):
    """Return a value as soon as it is what is expected, or after a while: what a pointer does reaches a page late."""
    for _ in range(100):
        if value() == expected:
            break
        time.sleep(0.1)
    return value()


def view(page, what, number=0):
    return page.execute_script(f"return document.querySelector('.map').views[{number}].{what}")


# ------------------------------------------------------------------------------------------------------- as it opens


def test_nothing_is_complained_of_and_nothing_is_asked_for(browser, home, both):
    for path in (home / "run0" / "report.html", both):
        page = opened(browser, path)
        find(page, "input[value=class]").find_element("xpath", "..").click()
        find(page, "#theme").click()
        assert page.get_log("browser") == []
        asked = page.execute_script("return performance.getEntriesByType('resource').map((each) => each.name)")
        assert [name for name in asked if not name.startswith("data:")] == []


def test_a_hostile_name_does_nothing_and_is_shown(browser, home, both):
    for path in (home / "run0" / "report.html", both):
        page = opened(browser, path)
        find(page, ".points summary").click()
        point_at(page, 4)  # of the source's first class
        assert page.execute_script("return typeof hacked") == "undefined"
        assert page.find_elements("css selector", "img") == []
        assert len(page.find_elements("css selector", "script")) == 2
        assert printable(HOSTILE) in find(page, "#tip").text
        assert printable(HOSTILE) in find(page, "#classes").text


def test_points_of_both_domains_are_there(page):
    colours = page.execute_script(
        """
        return document.querySelector(".map").views.map((view) => {
          const pixels = view.canvas.getContext("2d").getImageData(0, 0, view.canvas.width, view.canvas.height).data;
          let [red, blue] = [0, 0];
          for (let k = 0; k < pixels.length; k += 4) if (pixels[k + 3] > 100) {
            red += pixels[k] > pixels[k + 2] + 80; blue += pixels[k + 2] > pixels[k] + 80;
          }
          return [red, blue];
        });
        """
    )
    assert len(colours) == 2  # before and after
    assert all(red > 20 and blue > 20 for red, blue in colours), colours
    assert page.execute_script("return document.querySelector('.map').views[0].samples.count") == 48


def test_the_picture_is_under_the_pointer(page, home):
    for sample in (0, 12, 20, 24 + 3, 24 + 12, 24 + 20):
        point_at(page, sample)
        at = view(page, "samples.pointed")  # where samples lie over each other, another one
        tip = find(page, "#tip")
        assert tip.is_displayed()
        assert ("source, labelled" if at < 24 else "target, taken for") in tip.text
        shown = Image.open(io.BytesIO(base64.b64decode(find(page, "#tip .tile").screenshot_as_base64))).convert("RGB")
        seen = np.asarray(shown)[20:-20, 20:-20].reshape(-1, 3).mean(0)
        name = (home / ("source" if at < 24 else "target")) / list(NAMES.values())[at % 24 // 8] / f"{at % 8}.jpg"
        expected = np.asarray(Image.open(name)).reshape(-1, 3).mean(0)
        np.testing.assert_allclose(seen, expected, atol=9)
        assert at == sample or np.subtract(place_of(page, at), place_of(page, sample)) @ [1, 1] < 4
    press(page, webdriver.Keys.TAB)
    webdriver.ActionChains(page).move_to_element(find(page, "h1")).perform()
    assert not find(page, "#tip").is_displayed()


# ---------------------------------------------------------------------------------------------------------- the map


def test_keys_zoom_move_and_go_from_sample_to_sample(page):
    page.execute_script("document.querySelector('canvas').focus()")
    press(page, "+", "+")
    assert view(page, "scale") == pytest.approx(1.25**2)
    assert view(page, "scale", 1) == 1
    press(page, "-", webdriver.Keys.ARROW_RIGHT, webdriver.Keys.ARROW_UP)
    assert view(page, "scale") == pytest.approx(1.25)
    assert view(page, "x") > 0.5
    assert view(page, "y") > 0.5
    press(page, "0")
    assert [view(page, what) for what in ("scale", "x", "y")] == [1, 0.5, 0.5]
    press(page, "n")
    confidence = view(page, "samples.confidence")
    first = view(page, "samples.pointed")
    assert confidence[first] == min(each for each in confidence if each is not None)
    assert "confidence" in page.execute_script("return document.querySelector('.map .readout').textContent")
    press(page, "n", "n", "p", "p")
    assert view(page, "samples.pointed") == first
    press(page, webdriver.Keys.ESCAPE)
    assert not find(page, "#tip").is_displayed()


def test_wheel_drag_and_buttons(page):
    def scrolled():
        return page.execute_script("return scrollY")

    x, y = place_of(page, 0)
    height = scrolled()
    actions = ActionBuilder(page)
    actions.wheel_action.scroll(x, y, 0, -100)
    actions.perform()
    assert in_time(scrolled, height - 100) == height - 100
    assert view(page, "scale") == 1  # the page scrolls by; nobody has clicked here
    x, y = place_of(page, 0)
    actions = ActionBuilder(page)
    actions.pointer_action.move_to_location(x, y).click()
    actions.perform()
    assert in_time(lambda: page.switch_to.active_element.tag_name, "canvas") == "canvas"
    actions = ActionBuilder(page)
    actions.wheel_action.scroll(x, y, 0, -150)
    actions.perform()
    zoomed = pytest.approx(np.exp(0.5))
    assert in_time(lambda: view(page, "scale"), zoomed) == zoomed
    assert place_of(page, 0) == pytest.approx([x, y], abs=2)  # what is under the pointer stays there
    actions = ActionBuilder(page)
    actions.pointer_action.move_to_location(x, y).pointer_down().move_to_location(x + 30, y - 20).pointer_up()
    actions.perform()
    moved = pytest.approx([x + 30, y - 20], abs=2)
    assert in_time(lambda: place_of(page, 0), moved) == moved
    for button in page.find_elements("css selector", ".zoom button")[:1] * 2:
        button.click()
    assert view(page, "scale", 1) == pytest.approx(1.5**2)
    page.find_elements("css selector", ".zoom button")[2].click()
    assert view(page, "scale", 1) == 1


def test_colours_by_class_and_by_confidence_and_one_class_alone(page):
    for kind in ("class", "confidence"):
        before = page.execute_script("return document.querySelector('canvas').toDataURL()")
        find(page, f"input[value={kind}]").find_element("xpath", "..").click()
        assert page.execute_script("return document.querySelector('canvas').toDataURL()") != before
    assert "unsure" in find(page, ".map .legend").text
    find(page, "input[value=class]").find_element("xpath", "..").click()
    chips = page.find_elements("css selector", ".map .legend button")
    assert [chip.text for chip in chips] == [printable(HOSTILE), "ant", "cat"]  # as folders are sorted
    chips[1].click()
    assert find(page, ".only").get_attribute("value") == "1"
    assert find(page, ".map .legend button[aria-pressed=true]").text == "ant"
    find(page, ".show[value=source]").click()
    assert view(page, "samples.shown") == {"source": False, "target": True}


def test_the_table_of_points_holds_all_of_them(page):
    find(page, ".points summary").click()
    assert in_time(lambda: len(page.find_elements("css selector", ".points tbody tr")), 48) == 48
    confidences = [float(text) for text in column(page, ".points", 3) if text]
    assert confidences == sorted(confidences)
    assert len(confidences) == 24


# ------------------------------------------------------------------------------------------------- tables and charts


def test_tables_sort_by_click_and_by_key(page):
    header = find(page, "#classes th .sort")
    header.click()
    ascending = column(page, "#classes", 0)
    assert ascending == sorted(ascending)
    assert len(ascending) == 3
    assert find(page, "#classes th[aria-sort]").get_attribute("aria-sort") == "ascending"
    header.send_keys(webdriver.Keys.ENTER)
    assert column(page, "#classes", 0) == ascending[::-1]
    assert find(page, "#classes th[aria-sort]").get_attribute("aria-sort") == "descending"
    page.find_elements("css selector", "#classes th .sort")[1].send_keys(webdriver.Keys.SPACE)
    shares = [float(text.rstrip("%")) for text in column(page, "#classes", 2)]
    assert shares == sorted(shares)
    assert len(page.find_elements("css selector", "#classes th[aria-sort]")) == 1


def test_curves_are_read_by_pointer_and_by_key(page):
    chart = find(page, "#training .lines svg")
    webdriver.ActionChains(page).move_to_element(chart).perform()
    readout = find(page, "#training .lines .readout")
    assert readout.text.startswith("step ")
    chart.click()
    press(page, webdriver.Keys.END)
    loss = RunFolder.open(page_run(page)).metrics()[-1]["loss"]
    assert readout.text == f"step 12: {loss:.4g}"
    press(page, webdriver.Keys.ARROW_LEFT)
    assert readout.text.startswith("step 11: ")


def page_run(page):
    return page.current_url.removeprefix("file://").removesuffix("/report.html")


# ------------------------------------------------------------------------------------------------ for whoever reads it


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(browser, both, theme):
    page = opened(browser, both, theme=theme)
    find(page, "input[value=class]").find_element("xpath", "..").click()
    page.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    found = page.execute_script(CONTRASTS)
    assert len(found) > 200
    assert min(found)[0] >= 4.5, min(found)
    paper = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) is (theme == "dark")


def test_the_theme_can_be_chosen_and_is_remembered(page):
    def paper():
        return page.execute_script("return getComputedStyle(document.body).backgroundColor")

    light, button = paper(), find(page, "#theme")
    button.click()
    assert (button.text, paper()) == ("Theme: light", light)
    button.click()
    assert button.text == "Theme: dark"
    assert paper() != light
    page.refresh()
    assert find(page, "#theme").text == "Theme: dark"
    assert paper() != light


@pytest.mark.parametrize("width", [320, 390])
def test_on_a_phone_nothing_is_wider_than_the_screen(browser, home, both, width):
    for path in (home / "run0" / "report.html", both):
        page = opened(browser, path, width=width, height=800)
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
        page.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert page.execute_script("return document.documentElement.scrollWidth") <= width


def test_everything_that_is_not_text_has_a_name(browser, both):
    page = opened(browser, both)
    page.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    nameless = page.execute_script(
        """
        const labelled = (e) => e.getAttribute("aria-label") || e.labels?.length;
        const named = (e) => labelled(e) || (e.matches("button, summary") && e.textContent.trim());
        const all = document.querySelectorAll("button, select, input, summary, canvas, svg[role=img], .tile");
        return [...all].filter((e) => !named(e)).map((e) => e.outerHTML);
        """
    )
    assert nameless == []
    headless = "return [...document.querySelectorAll('table')].filter((e) => !e.caption || !e.tHead).length"
    assert page.execute_script(headless) == 0
    twice = "const ids = [...document.querySelectorAll('[id]')].map((e) => e.id); return ids.length - new Set(ids).size"
    assert page.execute_script(twice) == 0
    unseen = (
        "return [...document.querySelectorAll('svg:not([role=img])')].filter((e) => e.ariaHidden !== 'true').length"
    )
    assert page.execute_script(unseen) == 0
    assert len(page.find_elements("css selector", "figure.chart:not(:has(table))")) == 0  # each has its data behind it


def test_it_can_be_walked_through_by_tab(page):
    press(page, webdriver.Keys.TAB)
    assert page.switch_to.active_element.text == "Skip to the verdict"
    seen = set()
    for _ in range(30):
        press(page, webdriver.Keys.TAB)
        active = page.switch_to.active_element
        seen.add(active.tag_name)
        outline = page.execute_script("return getComputedStyle(arguments[0]).outlineStyle", active)
        assert outline != "none" or active.tag_name == "input"  # whose label shows it
    assert {"a", "button", "input", "select", "canvas", "summary"} <= seen


def test_it_prints_light_and_without_controls(browser, home):
    page = opened(browser, home / "run0" / "report.html", theme="dark")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not find(page, "nav").is_displayed()
    assert not find(page, ".controls").is_displayed()
    assert find(page, "#verdict").is_displayed()
    printed = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert printed.startswith(b"%PDF")


def test_several_runs_stand_side_by_side(browser, both):
    page = opened(browser, both)
    assert [each.text for each in page.find_elements("css selector", "#verdict .run-name")] == ["run0", "run1"]
    left, right = (each.location for each in page.find_elements("css selector", "#verdict .verdict"))
    assert left["y"] == right["y"]
    assert left["x"] < right["x"]
    assert len(page.find_elements("css selector", "canvas")) == 4
    for words in ("run1 against run0", "Oracle", "a finding", "theory, measured", "estimated accuracy"):
        assert words in find(page, "main").text


def test_without_scripts_what_is_said_is_still_there(browser, home):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get((home / "run0" / "report.html").resolve().as_uri())
        words = RunFolder.open(home / "run0").summary["words"]
        assert words[1:] in find(browser, "#verdict").text
        assert find(browser, "#training svg .smooth").is_displayed()
        assert len(browser.find_elements("css selector", "#samples .tile")) == 32
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})

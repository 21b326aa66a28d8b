"""Pages: they hold the result's numbers, need nothing else, and work in a browser."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cachegen_cli import InputError, analyze, from_json, render, sweep
from cachegen_cli.report.differences import differences
from cachegen_cli.report.html.charts import Dot, curves, histogram
from cachegen_cli.report.html.embedding import extracted
from cachegen_cli.report.units import percent, si_bytes
from cachegen_cli.report.views import view
from cachegen_cli.results.analyses import Sweep
from cachegen_cli.saved import load_result


class Tables(HTMLParser):
    """The cells of a page's tables, and everything that it would load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.loads += [given[key] for key in ("src", "href") if key in given]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="module")
def detailed(captured):
    return analyze(captured, bits=4, detail=True)


@pytest.fixture(scope="module")
def graded(llama):
    return sweep(
        str(llama), "It was a quiet night on the river. " * 4, bits=(2, 4, 8), quality=True
    )


def test_a_page_holds_the_numbers_and_loads_nothing(detailed, graded):
    for result in (detailed, graded):
        page = render(result, "html")
        parsed = Tables(page)
        assert parsed.loads == [] and not parsed.open
        assert "http" not in re.sub(r'id="cachegen-result">.*?<', "", page)
        full = view(result, True)
        wanted = [full.cells(row) for row in (*full.rows, *full.totals)]
        drawn = [column.drawn for column in full.columns]
        kept = [[c for c, d in zip(row, drawn, strict=True) if not d] for row in wanted]
        assert any(table[1:] == kept for table in parsed.tables)
        assert from_json(extracted(page)) == result


def test_a_page_shows_bars_heat_and_histograms(detailed):
    page = render(detailed, "html")
    totals = detailed.measurement.totals
    assert f"<b>{si_bytes(totals.coded_bytes)}</b>" in page
    assert f"<b>{percent(totals.coded_saving)}</b>" in page
    bars, grid, first = Tables(page).tables[:3]
    assert len(bars) == len(grid) == 1 + len(detailed.measurement.tensors)
    size = detailed.measurement.layers[0].keys
    assert bars[1] == ["0", "keys", "", si_bytes(size.coded_bytes)]
    assert [float(cell) for cell in grid[1][2:]] == [
        round(b, 2) for b in size.detail.group_bits_per_element
    ]
    assert sum(int(count.replace(",", "")) for _, count in first[1:]) == size.elements
    widths = [float(w) for w in re.findall(r'class="k\d" style="width:([\d.]+)%"', page)]
    longest = max(t.coded_bytes for t in detailed.measurement.tensors)
    assert sum(widths) == pytest.approx(100 * totals.coded_bytes / longest, abs=2)


def test_without_detail_the_page_says_so(result):
    assert render(result, "html").count("measure with --detail") == 2


def test_what_is_typed_cannot_become_markup(detailed):
    odd = replace(detailed.run.prompt, source='<script>alert(1)</script> & "x"')
    page = render(replace(detailed, run=replace(detailed.run, prompt=odd)), "html")
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page


def test_eighty_layers_and_seven_settings_stay_below_a_megabyte(swept):
    row = swept.rows[0]
    layers = tuple(replace(row.layers[i % 4], layer=i, layers=(i,)) for i in range(80))
    large = Sweep(swept.run, tuple(replace(row, layers=layers) for _ in range(7)))
    page = render(large, "html")
    assert len(page.encode()) < 1_000_000
    assert from_json(extracted(page)) == large


def test_differences_on_a_page(captured):
    both = [analyze(captured, bits=bits) for bits in (4, 3)]
    page = render(differences(both, ["a", "b"], 0), "html")
    assert "coded_bytes side by side" in page


def test_a_page_is_read_again(detailed, tmp_path):
    path = tmp_path / "p.html"
    page = render(detailed, "html")
    path.write_text(page)
    assert load_result(path) == detailed
    for damaged, why in (
        (re.sub(r'cachegen-result">.{40}', 'cachegen-result">', page), "damaged"),
        (
            re.sub(r'(cachegen-result">.{400}).*?</script>', r"\1</script>", path.read_text()),
            "damaged",
        ),
        ("<!doctype html><p>Hello", "holds no result"),
    ):
        path.write_text(damaged)
        with pytest.raises(InputError, match=why):
            load_result(path)


def test_charts_of_odd_data():
    assert "nothing to draw" in curves([("a", [Dot(4, 0.0, "x")])], "x", "y")
    assert curves([("a", [Dot(4, 1e-3, "x")])], "x", "y").count("<circle") == 1
    assert "V0h1V50h1" in histogram([2, 1], 0, 1, "it")


# in a browser


def browser_path() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    mac = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
    found = next((path for name in names if (path := shutil.which(name))), None)
    return found or (mac if Path(mac).exists() else None)


@pytest.fixture(scope="module")
def browser():
    path = browser_path()
    if path is None:
        pytest.skip("no Chromium is here")
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=arguments)
        yield running
        running.close()


@pytest.fixture(scope="module")
def pages(detailed, graded, captured, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    both = differences([analyze(captured, bits=b) for b in (4, 3)], ["a", "b"], 0)
    for name, result in (("detail", detailed), ("sweep", graded), ("differences", both)):
        (folder / f"{name}.html").write_text(render(result, "html"))
    return folder


@pytest.mark.parametrize("width", [390, 800, 1440])
@pytest.mark.parametrize("name", ["detail", "sweep", "differences"])
def test_a_browser_shows_it_without_errors_or_overflow(browser, pages, name, width):
    said: list[str] = []
    asked: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "request", lambda request: said.append(request.url) if "file:" not in request.url else 0
    )
    page.goto((pages / f"{name}.html").as_uri())
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(over) == 0 and said == []
    assert [url for url in asked if not url.startswith("file:")] == []
    page.close()


@pytest.mark.parametrize("name", ["detail", "sweep"])
def test_paper_holds_the_page(browser, pages, name):
    page = browser.new_page(viewport={"width": 1046, "height": 718}, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")  # A4, landscape, less its margins
    page.goto((pages / f"{name}.html").as_uri())
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(over) == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.close()


def test_theme_tensor_and_json_in_a_browser(browser, pages, detailed):
    page = browser.new_page(color_scheme="dark", accept_downloads=True)
    page.goto((pages / "detail.html").as_uri())

    def back() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    dark = back()
    page.click("#theme")
    light = back()
    page.click("#theme")
    assert dark == back() != light
    shown = "document.querySelectorAll('figure:not([hidden])').length"
    assert page.evaluate(shown) == 1
    page.select_option("#tensor", "3")
    assert page.inner_text("figure:not([hidden]) figcaption") == "layer 1, values"
    with page.expect_download() as saving:
        page.click("#save")
    assert from_json(Path(saving.value.path()).read_text()) == detailed
    page.close()


def test_contrast_and_text_alternatives(browser, pages):
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto((pages / "detail.html").as_uri())
        assert page.evaluate(CONTRAST) >= 4.5
        assert page.evaluate(
            "[...document.querySelectorAll('svg')].every(s => s.querySelector('title'))"
        )
        page.close()


CONTRAST = """() => {
  const light = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((v) => {
      const c = v / 255;
      return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const back = (node) => {
    let solid = getComputedStyle(document.body).backgroundColor;
    for (let n = node; n && n.nodeType === 1; n = n.parentElement) {
      const color = getComputedStyle(n).backgroundColor;
      if (!color.startsWith("rgba")) { solid = color; break; }
      const [r, g, b, a] = color.match(/[\\d.]+/g).map(Number);
      if (a > 0) {
        const under = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number);
        solid = `rgb(${[r, g, b].map((v, i) => v * a + under[i] * (1 - a)).join(",")})`;
        break;
      }
    }
    return solid;
  };
  let worst = 21;
  for (const node of document.querySelectorAll("p, th, td, dt, dd, span, h1, h2, summary, b")) {
    if (!node.textContent.trim() || getComputedStyle(node).fontSize === "0px") continue;
    const [a, b] = [light(getComputedStyle(node).color), light(back(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    worst = Math.min(worst, ratio);
  }
  return worst;
}"""

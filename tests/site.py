"""The site in a real browser. `.ci/run docs` builds it into `site/` and then runs this file; no other run does."""

import re
from html import unescape

import pytest

from tests.house import ROOT
from tests.report.browser import launched, Watched


BUILT = ROOT / "site"
# Of the pages that show sources, which one template makes, that of `js.solve` stands for all.
PAGES = [
    page
    for page in sorted(BUILT.rglob("*.html"))
    if "_modules" not in page.parts or page == BUILT / "_modules" / "jaxsolve" / "_solve.html"
]


@pytest.fixture(scope="module")
def browser():
    with launched() as chromium:
        yield chromium


def test_the_site_is_built():
    names = {page.relative_to(BUILT).as_posix() for page in PAGES}
    assert {f"reports/{name}.html" for name in ("xu_ziyin", "kunin", "atanasov")} <= names
    assert "errors.md" in (BUILT / "llms.txt").read_text("utf-8")
    assert {"index.html", "equations.html", "gallery.html", "generated/jaxsolve.theory.html"} <= names


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(BUILT).as_posix())
def test_a_page_asks_nobody_for_anything_and_fits_its_window(browser, page, width):
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
    watched = Watched(context.new_page())
    watched.page.goto(page.as_uri())
    assert watched.wrong == []
    assert watched.overflow() <= 0
    broken = "[...document.images].filter(image => !image.complete || !image.naturalWidth).map(image => image.src)"
    assert watched.page.evaluate(broken) == []
    context.close()


@pytest.mark.parametrize("width", [1280, 400])
def test_the_explorer_follows_its_sliders(browser, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((BUILT / "explorer.html").as_uri())
    regime, curves = page.locator("#explorer-regime"), page.locator("#explorer-curves .curve")
    assert curves.count() == 3
    seen = {}
    for gamma in range(8):
        page.locator("input[name=gamma]").fill(str(gamma))
        seen[regime.inner_text()] = curves.first.get_attribute("d")
    assert {"Regime: frozen", "Regime: feature learning", "Regime: unstable"} <= seen.keys()
    assert len(set(seen.values())) == len(seen)
    page.close()


def test_every_name_of_the_reference_leads_somewhere():
    """In the tables of the overview each name in code is a link, but for those of constants."""
    text = (BUILT / "api.html").read_text("utf-8")
    tables = text[text.index('id="reference"') : text.index('id="all-public-names"')]
    names = re.findall(r"(<a [^>]*>)?<code[^>]*>(.*?)</code>", tables)
    plain = [re.sub(r"<[^>]+>", "", name) for link, name in names if not link]
    assert len(names) > 200
    assert [name for name in plain if re.fullmatch(r"[A-Za-z_.]*[a-z][A-Za-z_.]*", name)] == []


def test_links_inside_are_alive():
    """Those to pages, to places on them, and to files."""
    ids = {page: set(re.findall(r'\bid="([^"]+)"', page.read_text("utf-8"))) for page in BUILT.rglob("*.html")}
    dead = []
    for page in ids:
        if "reports" in page.parts or "_modules" in page.parts:
            continue
        for target in re.findall(r'<a [^>]*href="([^"]+)"', page.read_text("utf-8")):
            path, _, place = unescape(target).partition("#")
            if path.startswith(("http:", "https:", "mailto:")):
                continue
            other = (page.parent / path).resolve() if path else page
            found = other.exists() and (not place or other not in ids or place in ids[other])
            if not found:
                dead.append((page.name, target))
    assert dead == []

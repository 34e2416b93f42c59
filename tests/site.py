"""The site in a real browser. `.ci/run docs` builds it into `site/` and then runs this file; no other run does."""

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

import pytest

from .standalone import page as page_html


@pytest.fixture
def open_instrument(chromium):
    """open_instrument(instrument, **state) shows its live view on a bare page; at the end no error may have been
    printed and nothing fetched."""
    pages, troubles = [], []

    def show(instrument, width=1000, dark=False, after="", **state):
        page = chromium.new_page(viewport={"width": width, "height": 1200})
        pages.append(page)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda line: troubles.append(line.text) if line.type in ("error", "warning") else None)
        page.on("request", lambda request: troubles.append(request.url) if request.url.startswith("http") else None)
        view = instrument.view(**state)
        page.set_content(page_html(view, dark, after))
        view.close()
        page.wait_for_function("window.ready === true")
        return page

    yield show
    for page in pages:
        page.close()
    assert troubles == []

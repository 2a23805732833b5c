"""The site that `make docs` built: what is in it, and how a browser finds it.

Everything is served from this machine, and a request to another one is a fault.
"""

import contextlib
import functools
import html.parser
import http.server
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
import zlib

import pytest

from tests.helpers import ROOT

pytestmark = pytest.mark.site
SITE = ROOT / "out" / "site"
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
SECONDS = 10_000  # milliseconds that anything may take
sys.path.append(str(ROOT / "tools"))


@pytest.fixture(scope="module")
def chromium():
    import browser
    from playwright.sync_api import sync_playwright

    path = browser.find()
    if path is None:
        pytest.skip("no browser is here, and none could be installed")
    with sync_playwright() as playwright:
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        options = ["--no-sandbox"] if root else []
        started = playwright.chromium.launch(executable_path=path, args=options)
        yield started
        started.close()


@contextlib.contextmanager
def served(folder):
    """Serve a folder, and yield its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def address():
    with served(SITE) as found:
        yield found


@pytest.fixture
def page(chromium, address):
    context = chromium.new_context(viewport=DESK, base_url=address)
    context.set_default_timeout(SECONDS)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield context.new_page()
    context.close()


# --- what is wrong with a page -------------------------------------------------------


def faults(chromium, folder, names):
    """Return what is wrong with pages, seen by a phone: "page: fault"."""
    found = []
    with served(folder) as address:
        context = chromium.new_context(viewport=PHONE, base_url=address)
        context.set_default_timeout(SECONDS)
        context.route(
            lambda url: not url.startswith(address), lambda route: route.abort()
        )
        for name in names:
            note = functools.partial(lambda name, text: found.append(f"{name}: {text}"))
            page = context.new_page()
            watch(page, address, functools.partial(note, name))
            page.goto(name.removesuffix("index.html"), wait_until="load")
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > PHONE["width"]:
                note(name, f"is {width} wide on a phone")
            page.close()
        context.close()
    return found + dead_links(folder, names)


def watch(page, address, note):
    def requested(request):
        if not request.url.startswith((address, "data:", "blob:")):
            note(f"asks for {request.url}")

    def failed(request):
        # A search index that is not needed any more is given up.
        if request.url.startswith(address) and request.failure != "net::ERR_ABORTED":
            note(f"could not load {request.url}")

    def answered(response):
        if response.status >= 400:
            note(f"got {response.status} for {response.url.removeprefix(address)}")

    page.on("request", requested)
    page.on("requestfailed", failed)
    page.on("response", answered)
    page.on("pageerror", lambda error: note(f"raises {error}"))
    page.on(
        "console",
        lambda message: message.type == "error" and note(f"logs {message.text}"),
    )


class Anchors(html.parser.HTMLParser):
    """The links of a page, and what can be linked in it."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])


def dead_links(folder, names):
    parsed = functools.cache(Anchors)
    found = []
    for name in names:
        for link in parsed(folder / name).links:
            url = urllib.parse.urlsplit(urllib.parse.urljoin(f"http://x/{name}", link))
            if url.netloc != "x":
                continue
            target = folder / urllib.parse.unquote(url.path).lstrip("/")
            if target.is_dir():
                target /= "index.html"
            anchor = urllib.parse.unquote(url.fragment)
            if not target.is_file():
                found.append(f"{name}: {link} leads nowhere")
            elif anchor and target.suffix == ".html":
                # `__` begins the anchors of the theme's own switches.
                known = anchor in parsed(target).ids or anchor.startswith("__")
                if not known:
                    found.append(f"{name}: {link} has no such anchor")
    return found


def pages_of(folder):
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    return sorted(set(names) - {"404.html"})


def test_nothing_is_wrong_with_any_page(chromium):
    names = pages_of(SITE)

    assert len(names) > 40
    assert [] == faults(chromium, SITE, names)


@pytest.mark.parametrize(
    ("sabotage", "fault"),
    [
        (
            '<script src="https://cdn.example.org/a.js"></script>',
            "asks for https://cdn.example.org/a.js",
        ),
        ('<img src="missing.png">', "got 404 for missing.png"),
        ('<a href="state/#nowhere">x</a>', "state/#nowhere has no such anchor"),
        ('<a href="nowhere/">x</a>', "nowhere/ leads nowhere"),
        ("<script>throw Error('mine')</script>", "raises mine"),
        ("<script>console.error('mine')</script>", "logs mine"),
        ('<div style="width: 500px">x</div>', "wide on a phone"),
    ],
)
def test_a_fault_is_found(chromium, tmp_path, sabotage, fault):
    copy = tmp_path / "site"
    shutil.copytree(SITE, copy)
    home = copy / "index.html"
    home.write_text(home.read_text().replace("</article>", f"{sabotage}</article>", 1))

    found = faults(chromium, copy, ["index.html"])

    assert any(fault in one for one in found), found


# --- what a reader does --------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("donate", "transforms"),
        ("value_and_grad", "value_and_grad"),
        ("host_function", "host"),
        ("FrozenStateError", "FrozenStateError"),
        ("resume", "saving"),
    ],
)
def test_the_search_finds(page, query, first):
    page.goto("")
    page.keyboard.press("/")
    page.locator(".md-search__input").press_sequentially(query)
    results = page.locator("a.md-search-result__link")
    results.first.wait_for()
    links = [results.nth(i).get_attribute("href") for i in range(results.count())]

    assert any(first in link for link in links[:8]), links[:8]


def test_a_copy_button_copies_the_block(page):
    page.goto("tutorial/")
    block = page.locator(".language-python.highlight").first
    block.hover()
    block.locator(".md-clipboard, button[data-md-type=copy]").first.click()
    page.wait_for_function("navigator.clipboard.readText().then(t => t.length > 0)")

    copied = page.evaluate("navigator.clipboard.readText()")

    assert copied.startswith("import jax, jax.numpy as jnp\nimport purestate as ps\n")
    assert copied.rstrip().endswith("assert int(counter.count) == 4")


def test_the_dark_page_is_dark(page):
    def background():
        page.wait_for_load_state()
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return max(int(part) for part in re.findall(r"\d+", color)[:3])

    page.emulate_media(color_scheme="light")
    page.goto("")
    assert background() > 200
    page.locator("label[title=Light], label[title=Dark]").locator(
        "visible=true"
    ).click()
    assert "slate" == page.evaluate("document.body.dataset.mdColorScheme")
    assert background() < 80


def test_the_home_page_shows_the_bug_the_fix_and_two_pictures(page):
    page.goto("")

    assert page.get_by_text("self.cache = 2.0").is_visible()
    assert page.get_by_text("self.replace(cache=out)").is_visible()
    assert page.get_by_text("cannot assign Box.cache").is_visible()
    assert 2 == page.evaluate(
        "[...document.querySelectorAll('article img')]"
        ".filter(i => i.complete && i.naturalWidth > 100).length"
    )


# --- what is in it -------------------------------------------------------------------


@pytest.fixture(scope="module")
def source():
    import reference

    return reference.read_source()


def inventory(folder):
    """Return the places of all names, as other projects' pages read them."""
    data = (folder / "objects.inv").read_bytes()
    lines = zlib.decompress(data[data.index(b"zlib.\n") + 6 :]).decode().splitlines()
    fields = (line.split() for line in lines)
    return {name: place.replace("$", name) for name, _, _, place, _ in fields}


def test_every_public_name_has_its_place(source):
    import reference

    places = inventory(SITE)
    names = [*reference.public_names(source), "purestate.errors"]

    assert len(names) > 100
    assert [] == sorted(set(names) - set(places))
    for name in names:
        page, _, anchor = places[name].partition("#")
        assert anchor in Anchors(SITE / page / "index.html").ids, name


def test_the_table_of_names_is_made_of_the_docstrings(source):
    import reference

    made = (ROOT / "docs" / "reference" / "index.md").read_text()

    assert reference.render(source) == made, "run: python tools/reference.py"


def test_every_error_has_its_way_out():
    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    parts = re.split(r"(?m)^::: purestate\.errors\.", text)[1:]

    assert [] == [part.split()[0] for part in parts if "**Way out**: " not in part]


def test_examples_in_docstrings_are_blocks_of_code():
    text = (SITE / "reference" / "state" / "index.html").read_text()

    assert "language-pycon" in text
    assert "<blockquote" not in text


def test_raises_leads_to_the_error():
    links = Anchors(SITE / "reference" / "state" / "index.html").links

    assert "../errors/#purestate.errors.StaticFieldError" in links


def test_replace_is_described():
    text = (SITE / "reference" / "state" / "index.html").read_text()

    assert 'id="purestate.State.replace"' in text


def test_the_text_for_language_models_has_all_guides():
    listed = (SITE / "llms.txt").read_text()
    whole = (SITE / "llms-full.txt").read_text()
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    guides = re.findall(r"- (\w+)\.md\n", menu.partition("- Examples:")[0])

    assert len(guides) > 12
    assert [] == [name for name in guides if f"/{name}/index.md" not in listed]
    assert "def step(self):" in whole


def test_the_successor_of_the_builder_makes_the_same_pages():
    folder = ROOT / "out" / "zensical"
    shutil.rmtree(folder, ignore_errors=True)
    environment = {**os.environ, "SITE_DIR": "out/zensical"}
    zensical = pathlib.Path(sys.executable).parent / "zensical"
    command = [zensical, "build", "--strict", "--clean"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert pages_of(SITE) == pages_of(folder)
    assert inventory(SITE) == inventory(folder)

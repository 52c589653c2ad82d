"""The page: complete in itself, escaped, well formed, and laid out by a real browser without a word of complaint."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from reports_shared import SOURCE, green, hostile, red

from attnlaws.cli import main
from attnlaws.report.document import without_run
from attnlaws.report.page import page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
VOID = {"meta", "link", "br"}
LOADS = {"src", "srcset", "poster", "data", "action", "background", "xlink:href"}


class Page(HTMLParser):
    """A page, read: each tag closed in its order, texts, ids, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def pages() -> dict[str, str]:
    known = red()
    for item in [*known["laws"], *known["failures"]]:
        name = item.get("law", item.get("name"))
        if name == "causality.future-keys":
            item["known"] = {"reason": "by design", "issue": "https://example.org/7?a=1&b=2", "expires": "2027-01-31"}
    blind = {**green(), "exit_code": 4, "conclusion": "nothing compared", "undetected": ["zeros"], "margins": []}
    return {
        "green": page([green()], 0),
        "red": page([red()], 1),
        "known": page([known], 1),
        "hostile": page([hostile()], 1),
        "several": page([green(), red(), blind, without_run("mine.py:f", "there is no file mine.py", 3)], 1),
    }


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages()


def test_each_page_is_well_formed_with_unique_ids_and_loads_nothing(made: dict[str, str]) -> None:
    for name, text in made.items():
        found = Page(text)
        ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
        assert len(ids) == len(set(ids)), name
        targets = [a["href"] for a in found.all("a") if (a["href"] or "").startswith("#")]
        assert {str(t)[1:] for t in targets} <= set(ids), name
        for tag, attrs in found.tags:
            assert tag not in {"script", "img", "iframe", "object", "embed", "base", "form"}, name
            assert not LOADS & set(attrs), name
            assert not any(attribute.startswith("on") for attribute in attrs), name
            assert "url(" not in (attrs.get("style") or ""), name
        assert [attrs["href"] for attrs in found.all("link")] == ["data:,"]
        style = text[text.index("<style>") : text.index("</style>")]
        assert not re.search(r"url\(|@import|https?:", style)


def test_the_page_says_what_the_run_says(made: dict[str, str]) -> None:
    run, found = red(), Page(made["red"])
    assert f"{len(run['failures'])} laws broken" in found.text
    for law in run["laws"]:
        assert law["name"] in found.text
    for failure in run["failures"]:
        assert failure["witness"]["words"] in found.text
    for item in run["impostors"]:
        assert f"{item['rejected']} of {item['tried']}" in found.text
    for row in run["target"]["card"]["conventions"]:
        assert row["question"] in found.text
    assert f"{run['catalogue']['caught']} of the {run['catalogue']['faults']} faults" in found.text
    assert "62" not in Page(made["green"]).text[:40]
    assert f"{green()['totals']['laws']['held']} laws held" in Page(made["green"]).text


def test_the_pictures_show_expected_got_and_difference(made: dict[str, str]) -> None:
    found = Page(made["red"])
    labels = [attrs.get("aria-label") or "" for attrs in found.all("svg")]
    pictured = [failure for failure in red()["failures"] if failure["mask"] is not None]
    assert pictured
    for side in ("expected", "got", "difference"):
        assert labels.count(f"effective mask, {side}") == len(pictured)
    assert "error / bound by length and dtype" in labels
    assert all(attrs.get("aria-label") or attrs.get("aria-hidden") for attrs in found.all("svg"))


def test_tables_have_heads_with_scope_and_folding_needs_no_script(made: dict[str, str]) -> None:
    found = Page(made["red"])
    assert all(attrs.get("scope") in ("col", "row") for attrs in found.all("th"))
    assert len(found.all("details")) == len(found.all("summary")) > 3
    assert found.all("a")[0] == {"class": "skip", "href": "#main"}
    assert len(found.all("h1")) == 1


def test_a_family_is_marked_as_held_where_all_of_it_is(made: dict[str, str]) -> None:
    run = green()
    assert Page(made["green"]).text.count("✓") == 1 + len(
        {law["family"] for law in run["laws"] if law["status"] == "held"}
    )
    for status in ("fault", "could not tell"):
        for law in run["laws"]:
            law["status"] = status if law["family"] == "heads" else law["status"]
        text = Page(page([{**run, "exit_code": 5, "conclusion": "fault of attnlaws"}], 5)).text
        assert "~ heads" in text
        assert "✓ weights" in text


def test_what_a_target_says_is_text(made: dict[str, str]) -> None:
    assert "<script" not in made["hostile"]
    assert '<script>alert("&")</script>' in Page(made["hostile"]).text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", made["hostile"])


def test_known_failures_have_a_section_and_a_link(made: dict[str, str]) -> None:
    found = Page(made["known"])
    assert "Known to be broken" in found.text
    assert "by design, until 2027-01-31" in found.text
    assert "https://example.org/7?a=1&b=2" in [attrs.get("href") for attrs in found.all("a")]
    bad = red()
    bad["failures"][0]["known"] = {"reason": "x", "issue": "javascript:alert(1)", "expires": None}
    assert not [attrs for attrs in Page(page([bad], 1)).all("a") if (attrs["href"] or "").startswith("javascript")]


def test_check_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "mine.py:leaky", "--laws", "causality", "--no-files", "--html", "run.html"]) == 1
    assert "causality.future-keys" in Page(Path("run.html").read_text()).text


# In a browser ---------------------------------------------------------------------------------------------------------

MEASURE = """<script>
document.querySelectorAll("details").forEach((item) => { item.open = true });
const wide = [...document.querySelectorAll("body *")].filter((item) => !item.classList.contains("skip")
  && item.getBoundingClientRect().right > document.documentElement.clientWidth + 1);
parent.postMessage(JSON.stringify({ inner: window.innerWidth, scroll: document.documentElement.scrollWidth,
  wide: wide.map((item) => item.outerHTML.slice(0, 200)), dark: matchMedia("(prefers-color-scheme: dark)").matches,
  paper: getComputedStyle(document.body).backgroundColor }), "*");
</script></body>"""
#: a browser's own window can't be as narrow as a phone
FRAME = """<!DOCTYPE html><title></title>
<script>addEventListener("message", (told) => { document.title = told.data })</script>
<iframe src="inner.html" style="width: {width}px; height: 900px; border: 0"></iframe>"""

Browser = Callable[..., tuple[str, str]]


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    """A function that opens a page, and gives the document as it then is, and what the browser logs."""

    def open_page(path: Path, *options: str, width: int = 1280) -> tuple[str, str]:
        assert CHROMIUM is not None
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
        command += ["--enable-logging=stderr", f"--window-size={width},900", *options, "--dump-dom", path.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return open_page


def measured(text: str, folder: Path, browser: Browser, width: int, *options: str) -> Any:
    """The layout of a page with all that folds open; for this a script is added, which the page itself forbids."""
    open_policy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n', "", text)
    (folder / "inner.html").write_text(open_policy.replace("</body>", MEASURE), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.replace("{width}", str(width)), encoding="utf-8")
    shown, _ = browser(folder / "frame.html", *options, "--virtual-time-budget=5000", width=width + 100)
    found = re.search(r"<title>(\{.*?\})</title>", shown, re.DOTALL)
    assert found, shown[:500]
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(made: dict[str, str], tmp_path: Path, browser: Browser, width: int) -> None:
    for name in ("red", "hostile", "several"):
        layout = measured(made[name], tmp_path, browser, width)
        assert layout["inner"] == width
        assert layout["wide"] == [], name
        assert layout["scroll"] <= width, name


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_is_dark_where_that_is_preferred(made: dict[str, str], tmp_path: Path, browser: Browser) -> None:
    found = {}
    for number in (0, 1):
        setting = f"--blink-settings=preferredColorScheme={number}"
        layout = measured(made["green"], tmp_path, browser, 1280, setting)
        found[layout["dark"]] = layout["paper"]
    assert found == {True: "rgb(13, 17, 23)", False: "rgb(255, 255, 255)"}


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("name", ["red", "hostile", "several"])
def test_the_browser_complains_of_nothing_and_loads_nothing(
    made: dict[str, str], tmp_path: Path, browser: Browser, name: str
) -> None:
    path, log = tmp_path / "page.html", tmp_path / "net.json"
    path.write_text(made[name], encoding="utf-8")
    _, messages = browser(path, f"--log-net-log={log}", "--disable-background-networking", "--disable-component-update")
    assert ":CONSOLE" not in messages
    asked = set(re.findall(r'"url":"((?:https?|wss?|ftp)://[^"]*)"', log.read_text(errors="replace")))
    by_the_page = {
        url for url in asked if not re.match(r"https?://([\w-]+\.)*(google|googleapis|gstatic|gvt1)\.com/", url)
    }
    assert by_the_page == set()


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_browser_would_complain(tmp_path: Path, browser: Browser) -> None:
    path, log = tmp_path / "bad.html", tmp_path / "net.json"
    path.write_text(
        '<html><body><img src="http://127.0.0.1:9/x.png"><script>console.error("no")</script></body></html>'
    )
    _, messages = browser(path, f"--log-net-log={log}")
    assert ":CONSOLE" in messages
    assert "http://127.0.0.1:9/x.png" in log.read_text(errors="replace")

"""The page as it is served: headers, caching, and nothing from elsewhere or inline."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from webapp import page

STATIC = Path(page.__file__).parent / "static"
NAMES = sorted(path.name for path in STATIC.iterdir())
SVG_NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.fixture
def client() -> FlaskClient:
    app = Flask("only_the_page", static_folder=None)
    app.register_blueprint(page.blueprint)
    return app.test_client()


def path_of(name: str) -> str:
    return f"/assets/{page.digest()}/{name}"


class Tags(HTMLParser):
    """Collects start tags with their attributes, and texts of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in and data.strip():
            self.inline.append(data)


@pytest.fixture
def tags(client: FlaskClient) -> Tags:
    return Tags(client.get("/").get_data(as_text=True))


def directives(response: TestResponse) -> dict[str, str]:
    policy = response.headers["Content-Security-Policy"]
    return dict(part.strip().split(" ", 1) for part in policy.split(";"))


def test_the_policy_allows_only_what_comes_from_here(client: FlaskClient) -> None:
    found = directives(client.get("/"))
    assert found.pop("default-src") == "'none'"
    assert found.pop("require-trusted-types-for") == "'script'"
    assert set(found.values()) <= {"'self'", "'none'"}
    assert {name for name, value in found.items() if value == "'self'"} == {
        "script-src", "style-src", "img-src", "connect-src",
    }  # fmt: skip
    assert {"base-uri", "form-action", "frame-ancestors"} <= found.keys()


@pytest.mark.parametrize("path", ["/", "app.js", "style.css", "icon.svg"])
def test_security_headers_are_on_every_file(client: FlaskClient, path: str) -> None:
    response = client.get(path if path == "/" else path_of(path))
    assert response.status_code == 200
    for name, value in page.SECURITY_HEADERS.items():
        assert response.headers[name] == value
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_every_file_of_the_folder_is_served(client: FlaskClient) -> None:
    assert sorted(page.assets()) == NAMES
    for name in NAMES:
        response = client.get(path_of(name))
        assert response.get_data() == (STATIC / name).read_bytes()
        assert response.mimetype == {
            ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
        }[Path(name).suffix]  # fmt: skip


def test_files_are_kept_for_good_and_the_page_is_asked_for_each_time(client: FlaskClient) -> None:
    kept = client.get(path_of("app.js")).headers["Cache-Control"]
    assert "immutable" in kept
    assert "max-age=31536000" in kept
    first = client.get("/")
    assert first.headers["Cache-Control"] == "no-cache"
    again = client.get("/", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.get_data()) == (304, b"")
    other = client.get("/", headers={"If-None-Match": '"other"'})
    assert other.status_code == 200


def test_the_digest_follows_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = set()
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    try:
        for name, text in (("a.js", "1"), ("a.js", "2"), ("b.js", "")):
            (tmp_path / name).write_text(text)
            page.assets.cache_clear()
            page.digest.cache_clear()
            found.add(page.digest())
    finally:
        page.assets.cache_clear()
        page.digest.cache_clear()
    assert len(found) == 3


@pytest.mark.parametrize(
    "path",
    ["/assets/0000000000000000/app.js", "none.js", "../page.py", "%2e%2e%2fpage.py", "", "a/b.js"],
)
def test_nothing_else_is_served(client: FlaskClient, path: str) -> None:
    assert client.get(path if path.startswith("/") else path_of(path)).status_code == 404


@pytest.mark.parametrize("path", ["/", "app.js"])
def test_only_reading(client: FlaskClient, path: str) -> None:
    path = path if path == "/" else path_of(path)
    assert client.post(path).status_code == 405
    head = client.head(path)
    assert (head.status_code, head.get_data()) == (200, b"")


def test_nothing_is_inline(tags: Tags) -> None:
    assert tags.inline == []
    handlers = [
        (tag, name)
        for tag, attributes in tags.tags
        for name in attributes
        if name.startswith("on") or name == "style"
    ]
    assert handlers == []
    assert not [1 for _, a in tags.tags if "javascript:" in (a.get("href") or "")]


def test_all_links_lead_here(tags: Tags, client: FlaskClient) -> None:
    links = [a.get("src") or a.get("href") for _, a in tags.tags if "src" in a or "href" in a]
    files = [link for link in links if link and not link.startswith("#")]
    assert len(files) >= 4
    for link in files:
        assert client.get(link).status_code == 200


@pytest.mark.parametrize("name", NAMES)
def test_no_file_names_another_host(name: str) -> None:
    text = (STATIC / name).read_text(encoding="utf-8").replace(SVG_NAMESPACE, "")
    assert re.findall(r"https?:|wss?:|url\(|@import|['\"]//", text) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_no_script_makes_markup_out_of_text(name: str) -> None:
    text = (STATIC / name).read_text(encoding="utf-8")
    unsafe = r"(inner|outer)HTML|insertAdjacent|document\.write|\beval\(|Function\(|localStorage"
    assert re.findall(unsafe, text) == []


def test_every_import_of_a_script_is_there() -> None:
    for name in NAMES:
        if name.endswith(".js"):
            text = (STATIC / name).read_text(encoding="utf-8")
            asked = re.findall(r'from "\./([^"]+)"', text)
            assert set(asked) <= set(NAMES)
            assert text.count("\nimport ") == len(asked)


def test_every_field_has_a_label(tags: Tags) -> None:
    labels = {a.get("for") for tag, a in tags.tags if tag == "label"}
    fields = {a.get("id") for tag, a in tags.tags if tag in ("input", "select", "textarea")}
    assert len(fields) >= 7
    assert fields == labels


def test_what_the_scripts_look_for_is_in_the_page(tags: Tags) -> None:
    ids = [a["id"] for _, a in tags.tags if "id" in a]
    assert len(ids) == len(set(ids))
    asked = {
        found
        for path in STATIC.glob("*.js")
        for found in re.findall(r'\b(?:part|field)\("([\w-]+)"\)', path.read_text(encoding="utf-8"))
    }
    assert {"prompt", "stop", "chart"} <= asked
    assert asked <= set(ids)
    described = {word for _, a in tags.tags for word in (a.get("aria-describedby") or "").split()}
    assert described <= set(ids)


def test_files_are_short() -> None:
    for name in NAMES:
        assert (STATIC / name).read_text(encoding="utf-8").count("\n") < 350, name

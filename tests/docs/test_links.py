from __future__ import annotations

from tests.docs.pages import ROOT, anchors_of, links_of, pages, text_of

README_LINES = 200


def test_links_between_files_resolve() -> None:
    links = [(page, target) for page in pages() for target in links_of(page)]
    assert [f"{page} links to {target}" for page, target in links if not resolves(page, target)] == []


def resolves(page: str, target: str) -> bool:
    if "://" in target or target.startswith("mailto:"):
        return True
    path, _, anchor = target.partition("#")
    found = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
    if not found.exists():
        return False
    return not anchor or found.suffix != ".md" or anchor in anchors_of(str(found.relative_to(ROOT)))


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, waiting = set(), ["README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        for target in links_of(page):
            found = (ROOT / page).parent.joinpath(target.partition("#")[0]).resolve()
            if found.suffix == ".md" and found.is_relative_to(ROOT) and found.exists():
                waiting.append(str(found.relative_to(ROOT)))
    assert sorted(set(pages()) - seen - {"docs/README.md"}) == []


def test_readme_is_short() -> None:
    assert len(text_of("README.md").splitlines()) <= README_LINES


def test_every_decision_is_in_the_index() -> None:
    listed = links_of("docs/adr/README.md")
    assert listed == sorted(listed)
    assert set(listed) == {path.name for path in (ROOT / "docs/adr").glob("0*.md")}


def test_glossary_is_sorted() -> None:
    lines = text_of("docs/glossary.md").splitlines()
    words = [line.split("|")[1].strip() for line in lines if line.startswith("| ")][2:]
    assert words == sorted(words)
    assert len(words) > 30

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT, anchors_of, links_of, pages, text_of

README_LINES = 200


@pytest.mark.parametrize("page", pages())
def test_links_between_files_resolve(page: str) -> None:
    for target in links_of(page):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
        assert found.exists(), f"{page} links to {target}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors_of(str(found.relative_to(ROOT))), f"{page} links to {target}"


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

"""The tables of hand-written pages have the figures of the stored results."""

import pytest

import measured
from measured import PAGES, Table, by_count, by_excess, figures, filled, marked, ratios


@pytest.mark.parametrize("page", PAGES)
def test_tables_have_the_stored_figures(page):
    assert list(marked(page))
    assert filled(page) == (measured.DOCS / page).read_text(encoding="utf-8")


@pytest.fixture
def docs(tmp_path, monkeypatch):
    lines = ["objective,data,batch,passes,setting,excess", "cox,a,8,1,in-batch,0.2", "cox,a,8,1,SOAP,0.1"]
    (tmp_path / "found.csv").write_text("\n".join([*lines, "cox,b,8,1,in-batch,0.1", "cox,b,8,1,SOAP,0.2", ""]))
    (tmp_path / "page.md").write_text(
        "before\n\n<!-- measured: excess found.csv cox -->\n\n"
        "| data | in-batch | **SOAP** |\n|---|---|---|\n| old | .3 | .3 |\n\nafter\n\n| other |\n|---|\n| 1 |\n"
    )
    monkeypatch.setattr(measured, "DOCS", tmp_path)
    return tmp_path


def test_a_table_is_filled_below_its_head_and_nothing_else_changes(docs):
    text = filled("page.md")
    body = "| a, 8, 1 | .200 | .100 |\n| b, 8, 1 | .100 | .200 |\n"
    means = "| ratio to in-batch: geometric mean | 1.00 | 1.00 |\n| largest | 1.00 | 2.00 |\n"
    assert text == (docs / "page.md").read_text().replace("| old | .3 | .3 |\n", body + means)


def test_ratios_are_those_of_the_rows_that_have_the_setting(docs):
    found = figures(docs / "found.csv", objective="cox")
    del found["b, 8, 1"]["SOAP"]
    assert ratios(found, "SOAP") == [0.5]


def test_rows_are_counted_where_a_setting_is_better_or_worse_with_the_same_own_term(docs):
    path = docs / "found.csv"
    path.write_text(path.read_text() + "nca,a,8,1,SOAP exact,1\nnca,a,8,1,cosine exact,0.95\nnca,a,8,1,cosine,9\n")
    asked = Table(["setting", "against"], [["SOAP", "in-batch", "?"], ["cosine", "SOAP"]])
    assert by_count(asked, "found.csv", "page.md") == [
        ["SOAP", "in-batch", "2", "1", "1", "1", "1"],
        ["cosine", "SOAP", "1", "0", "1", "0", "0"],
    ]


def test_an_objective_without_figures_is_refused(docs):
    with pytest.raises(ValueError, match="has no line with"):
        by_excess(Table(["data", "**SOAP**"], []), "found.csv nca", "page.md")

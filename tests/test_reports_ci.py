"""JUnit by the rules of CI servers' schemas, GitHub's commands and summary, the badge."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from reports_shared import HOSTILE, SOURCE, green, hostile, red

from attnlaws.cli import main
from attnlaws.report.badge import badge
from attnlaws.report.document import without_run
from attnlaws.report.github import commands, summary
from attnlaws.report.junit import junit
from attnlaws.report.words import unexpected, verdict

TOKEN = r"\S+( \S+)*"
NUMBER = r"\d+"
TIME = r"\d{1,3}(\d{3})*\.\d+"
#: attributes and what they match, by element: what the schema of Jenkins' xUnit plugin (junit-10) and that of the Ant task
#: (Windy Road) allow and want, both together
SUITE = {
    "name": TOKEN, "package": TOKEN, "id": NUMBER, "hostname": TOKEN, "tests": NUMBER, "failures": NUMBER, "errors": NUMBER,
    "skipped": NUMBER, "time": TIME, "timestamp": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d",
}  # fmt: skip
CASE = {"name": TOKEN, "classname": TOKEN, "time": TIME}
OUTCOME = {"type": ".+", "message": "(?s).*"}


def attributes(element: Element, rules: dict[str, str]) -> None:
    assert set(element.attrib) == set(rules)
    for name, rule in rules.items():
        assert re.fullmatch(rule, element.attrib[name]), (name, element.attrib[name])


def checked(text: str) -> Element:
    """The root of a JUnit file, which keeps the rules of both schemas."""
    root = ElementTree.fromstring(text.encode())
    assert (root.tag, root.attrib) == ("testsuites", {})
    for number, suite in enumerate(root):
        assert suite.tag == "testsuite"
        attributes(suite, SUITE)
        assert suite.attrib["id"] == str(number)
        tags = [child.tag for child in suite]
        cases = suite.findall("testcase")
        assert tags == ["properties", *["testcase"] * len(cases), "system-out", "system-err"]
        for item in suite[0]:
            attributes(item, {"name": TOKEN, "value": "(?s).*"})
        for case in cases:
            attributes(case, CASE)
            assert len(case) <= 1
            for outcome in case:
                assert outcome.tag in ("failure", "error", "skipped")
                attributes(outcome, OUTCOME)
        for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert int(suite.attrib[name]) == len(suite.findall(f"testcase/{kind}"))
        assert int(suite.attrib["tests"]) == len(cases)
        assert len({case.attrib["name"] for case in cases}) == len(cases)
    return root


def known_in(run: Any, *laws: str) -> Any:
    for item in [*run["laws"], *run["failures"]]:
        if item.get("law", item.get("name")) in laws:
            item["known"] = {"reason": "by design", "issue": "https://example.org/7", "expires": None}
    return run


def test_junit_says_what_became_of_each_law() -> None:
    run = red()
    (suite,) = checked(junit([run]))
    cases = {case.attrib["name"]: case for case in suite.findall("testcase")}
    assert list(cases) == [law["name"] for law in run["laws"]]
    for law in run["laws"]:
        kind = {"held": None, "broken": "failure"}.get(law["status"], "skipped")
        assert [child.tag for child in cases[law["name"]]] == ([kind] if kind else [])
    text = cases["causality.future-keys"][0].text or ""
    assert "smallest witness" in text
    assert "expected" in text


def test_junit_is_never_green_where_the_run_is_not() -> None:
    blind = {**green(), "exit_code": 4, "conclusion": "nothing compared", "undetected": ["zeros"]}
    late = {**green(), "exit_code": 124, "conclusion": "out of time", "out_of_time": True}
    outdated = {**green(), "exit_code": 1}
    outdated["outdated"] = [
        {"law": "weights.oracle", "reason": "old", "issue": None, "expires": None, "words": "now passes"}
    ]
    runs = [red(), blind, late, outdated, without_run("mine.py:f", "there is no file mine.py", 3)]
    for suite in checked(junit(runs)):
        assert int(suite.attrib["failures"]) + int(suite.attrib["errors"]) > 0
    (suite,) = checked(junit([green()]))
    assert (suite.attrib["failures"], suite.attrib["errors"]) == ("0", "0")


def test_junit_skips_known_failures_with_their_reason() -> None:
    run = red()
    names = [failure["law"] for failure in run["failures"]]
    (suite,) = checked(junit([{**known_in(run, *names), "exit_code": 0}]))
    assert suite.attrib["failures"] == "0"
    told = [item.attrib["message"] for item in suite.findall("testcase/skipped[@type='known']")]
    assert told == ["known: by design (https://example.org/7)"] * len(names)


def test_junit_holds_whatever_a_target_says() -> None:
    (suite,) = checked(junit([hostile()]))
    assert '<script>alert("&")</script>' in suite.attrib["name"]


def decoded(command: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as the runner reads it."""

    def plain(text: str) -> str:
        for escape, letter in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            text = text.replace(escape, letter)
        return text

    found = re.fullmatch(r"::(error|notice) ([^\n]*?)::([^\n]*)", command)
    assert found, command
    properties = dict(item.split("=", 1) for item in found[2].split(","))
    return found[1], {key: plain(value) for key, value in properties.items()}, plain(found[3])


def test_github_gets_an_annotation_for_each_root_cause_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    source = tmp_path / "kernels" / "mine.py"
    source.write_text(SOURCE)
    run = red()
    run["target"]["address"] = f"{source}:leaky"
    found = [decoded(command) for command in commands([run], tmp_path)]
    roots = [failure["law"] for failure in unexpected(run) if failure["under"] is None]
    assert len(found) == len(roots) > 0
    for (kind, properties, message), law in zip(found, roots, strict=True):
        assert (kind, properties["file"], properties["line"]) == ("error", "kernels/mine.py", "8")
        assert law in properties["title"]
        assert message.startswith(law)
        assert "smallest witness" in message
    run["target"]["address"] = "/elsewhere/mine.py:leaky"
    assert "file" not in decoded(commands([run], tmp_path)[0])[1]


def test_github_commands_hold_whatever_a_target_says(tmp_path: Path) -> None:
    for command in commands([hostile()], tmp_path):
        _, properties, message = decoded(command)
        assert "::warning::" in message  # inside the message, not a line of its own
        assert properties["title"].endswith(HOSTILE)


def test_github_errors_where_no_law_is_broken_and_notices_where_it_is_known(tmp_path: Path) -> None:
    blind = {**green(), "exit_code": 4, "conclusion": "nothing compared"}
    assert [decoded(c)[0] for c in commands([blind], tmp_path)] == ["error"]
    assert [decoded(c)[2] for c in commands([without_run("f", "no such file", 3)], tmp_path)] == ["no such file"]
    assert commands([green()], tmp_path) == []
    run = red()
    names = [failure["law"] for failure in run["failures"]]
    found = [decoded(c) for c in commands([{**known_in(run, *names), "exit_code": 0}], tmp_path)]
    assert {kind for kind, _, _ in found} == {"notice"}
    assert "by design" in found[0][2]


def test_the_step_summary_has_a_row_a_target_and_folds_failures() -> None:
    text = summary([green(), red()])
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 4
    assert "laws held" in rows[2]
    assert "broken" in rows[3]
    assert text.count("<details>") == text.count("</details>") == len(red()["failures"])


def test_the_step_summary_holds_whatever_a_target_says() -> None:
    text = summary([hostile()])
    assert "<script>" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 3
    assert rows[2].count("|") == 6


@pytest.mark.parametrize(
    ("runs", "code", "words"),
    [
        ([green()], 0, "laws held"),
        ([red()], 1, "broken"),
        ([green(), green()], 0, "2 targets,"),
        ([green(), red()], 1, "1 of 2 targets not green"),
        ([without_run("f", "no such file", 3)], 3, "not adapted"),
    ],
)
def test_the_badge_says_the_verdict(runs: list[Any], code: int, words: str) -> None:
    root = ElementTree.fromstring(badge(runs, code))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "attnlaws"
    assert words in texts[1]
    assert root.attrib["aria-label"] == f"attnlaws: {texts[1]}"
    assert not re.search(r"(?<!xmlns=.)https?://", badge(runs, code))


def test_the_verdict_counts_what_is_known() -> None:
    run = red()
    names = [failure["law"] for failure in run["failures"]]
    assert verdict(run).startswith(f"{len(names)} laws broken")
    told = verdict({**known_in(run, *names), "exit_code": 0})
    assert "held" in told
    assert told.endswith(f"{len(names)} known to be broken")


def test_check_writes_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("# earlier\n")
    options = ["--laws", "causality.future-keys", "--junit", "out/junit.xml", "--badge", "out/badge.svg", "--github"]
    assert main(["check", "mine.py:leaky", "mine.py:gone", *options, "--no-files"]) == 1
    suites = checked(Path("out/junit.xml").read_text())
    assert [suite.attrib["name"] for suite in suites] == ["mine.py:leaky", "mine.py:gone"]
    ElementTree.parse("out/badge.svg")
    assert "::error file=mine.py,line=8,title=causality.future-keys" in capsys.readouterr().out
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("# earlier\n")
    assert "causality.future-keys" in text


def test_github_is_told_by_itself_there_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["check", "nowhere:f", "--no-files"]
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    for setting, more, told in (
        ("true", [], True),
        ("true", ["--no-github"], False),
        ("", [], False),
        ("", ["--github"], True),
    ):
        monkeypatch.setenv("GITHUB_ACTIONS", setting)
        assert main([*arguments, *more]) == 3
        assert ("::error" in capsys.readouterr().out) is told

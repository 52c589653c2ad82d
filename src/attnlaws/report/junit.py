"""JUnit XML, for CI servers: one suite a target, one case a law.

Valid by both schemas in use: that of Jenkins' xUnit plugin (junit-10.xsd), and that of the Ant task, which wants more
attributes and a fixed order of elements.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from .document import Document
from .words import block, clean, known_words, remarks


def junit(runs: Sequence[Document], when: datetime | None = None) -> str:
    """The text of a JUnit file. Broken laws are failures, faults of attnlaws and runs that were cut short errors; known
    failures and laws that are not applicable are skipped. A run that is not green has a failure or an error.
    """
    root = Element("testsuites")
    for number, run in enumerate(runs):
        _suite(root, number, run, when or datetime.now(UTC))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: Element, number: int, run: Document, when: datetime) -> None:
    name = _token(run["target"]["name"])
    suite = SubElement(root, "testsuite", name=name, package=name, id=str(number))
    properties = SubElement(suite, "properties")
    facts = {"attnlaws": run["attnlaws"], "profile": run["profile"], "seed": run["seed"], **run["versions"]}
    for key, value in facts.items():
        SubElement(properties, "property", name=_token(key), value=clean(str(value)))
    failures = {failure["law"]: failure for failure in run["failures"]}
    for law in run["laws"]:
        case = _case(suite, name, law["name"], law["seconds"])
        _outcome(case, law, failures.get(law["name"]), out_of_time=run["out_of_time"])
    for entry in run["outdated"]:
        told = f"{entry['words']} It is listed as known: {known_words(entry)}"
        _told(_case(suite, name, f"known failure: {entry['law']}"), "failure", "outdated", told)
    if run["exit_code"] and not (suite.findall("*/failure") or suite.findall("*/error")):
        words = run["error"] or _why(run)
        _told(_case(suite, name, "the run"), "error", run["conclusion"], words)
    SubElement(suite, "system-out").text = clean("\n".join(remarks(run))) or None
    SubElement(suite, "system-err")
    counts = {kind: len(suite.findall(f"testcase/{kind}")) for kind in ("failure", "error", "skipped")}
    suite.attrib.update(
        tests=str(len(suite.findall("testcase"))),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time=f"{run['seconds']:.3f}",
        timestamp=when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        hostname=_token(platform.node()) if platform.node() else "localhost",
    )


def _case(suite: Element, target: str, name: str, seconds: float = 0.0) -> Element:
    return SubElement(suite, "testcase", name=_token(name), classname=target, time=f"{seconds:.3f}")


def _outcome(case: Element, law: Document, failure: Document | None, *, out_of_time: bool) -> None:
    """What became of a law; nothing where it held."""
    status, reason = law["status"], law["reason"]
    if failure is not None and failure["known"] is None:
        _told(case, "failure", status, failure["raised"] or reason, block(failure))
    elif failure is not None:
        _told(case, "skipped", "known", f"known: {known_words(failure['known'])}", block(failure))
    elif status == "fault" or (status == "could not tell" and out_of_time):
        _told(case, "error", status, reason)
    elif status != "held":
        _told(case, "skipped", status, f"{status}: {reason}")


def _told(case: Element, kind: str, of_type: str, message: str, text: str = "") -> None:
    SubElement(case, kind, type=of_type, message=clean(" ".join(message.split()))).text = clean(text) or None


def _why(run: Document) -> str:
    """Why a run without a broken law is not green."""
    if run["undetected"]:
        return f"these impostors would have passed: {', '.join(run['undetected'])}"
    return str(run["conclusion"])


def _token(text: object) -> str:
    """An attribute that holds no line breaks and no blanks at its ends, and is not empty."""
    return clean(" ".join(str(text).split())) or "-"

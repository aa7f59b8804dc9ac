"""The forms and the workflows of the forge can be read, and run what a change has to pass."""

from __future__ import annotations

import re
import tomllib

import pytest

from support import ROOT

yaml = pytest.importorskip("yaml")
FORGE = ROOT / ".github"
KINDS = {"textarea", "input", "dropdown", "checkboxes", "markdown"}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def read(name: str) -> dict:
    return yaml.safe_load((FORGE / name).read_text(encoding="utf-8"))


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", sorted(path.name for path in (FORGE / "ISSUE_TEMPLATE").iterdir()))
def test_a_form_of_issues_has_what_the_forge_asks_for(name):
    form = read(f"ISSUE_TEMPLATE/{name}")
    assert form["name"]
    assert form["description"]
    assert form["body"]
    labels = [field["attributes"]["label"] for field in form["body"] if field["type"] != "markdown"]
    assert len(set(labels)) == len(labels)
    for field in form["body"]:
        assert field["type"] in KINDS
        assert field["type"] == "markdown" or field["attributes"]["label"]


def test_a_report_of_a_bug_asks_for_the_program_and_for_doctor():
    fields = [field["attributes"]["label"] for field in read("ISSUE_TEMPLATE/bug.yml")["body"]]
    assert "A program that shows it" in fields
    assert "python -m atomr_trio doctor" in fields


def test_a_pull_request_is_asked_for_tests_documents_and_a_fragment():
    text = (FORGE / "PULL_REQUEST_TEMPLATE.md").read_text(encoding="utf-8")
    for wanted in ("a test fails without it", "`.ci/run` passes", "`changes/`"):
        assert wanted in text


def test_the_workflow_runs_what_a_change_has_to_pass_on_every_python_that_the_package_names():
    workflow = read("workflows/ci.yml")
    [job] = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [found[1] for each in project["classifiers"] if (found := re.fullmatch(r".* :: (3\.\d+)", each))]
    assert job["strategy"]["matrix"]["python"] == named
    [setup] = [step for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert setup["with"]["python-version"] == "${{ matrix.python }}"


def test_a_release_is_checked_and_tried_before_its_files_are_kept():
    order = [step.get("run") or step["uses"].partition("@")[0] for step in steps(read("workflows/release.yml"))]
    assert order[2:] == ['make release-check TAG="$GITHUB_REF_NAME"', "make dist-check", "actions/upload-artifact"]


@pytest.mark.parametrize("name", sorted(path.name for path in (FORGE / "workflows").iterdir()))
def test_what_a_workflow_runs_exists_and_it_may_read_alone(name):
    workflow = read(f"workflows/{name}")
    assert workflow["permissions"] == {"contents": "read"}
    for step in steps(workflow):
        if "run" in step:
            program, *arguments = step["run"].split()
            if program == "make":
                assert re.search(rf"^{arguments[0]}:", MAKEFILE, re.MULTILINE)
            else:
                assert (ROOT / program).stat().st_mode & 0o100

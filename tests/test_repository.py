"""Files of the repository that nobody imports agree with the package: recipe, citation, workflows and their scripts."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
import slow
from pages import FENCED

import sklearn_laplace

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECIPE = (ROOT / ".github/conda/recipe.yaml").read_text(encoding="utf-8")
CITATION = (ROOT / ".github/CITATION.cff").read_text(encoding="utf-8")
WORKFLOWS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")}
SCRIPTS = {path.name: path for path in (ROOT / ".ci").iterdir() if path.name[0] not in "._"}
PAGES = sorted((ROOT / ".github").glob("*.md"))
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def value_of(key: str, text: str) -> str:
    """Value of the only line ``key: value`` of a YAML file, without quotation marks."""
    [value] = re.findall(rf'^ *{key}: *"?([^"\n]*)"?$', text, flags=re.MULTILINE)
    return value


def items_of(key: str, text: str) -> list[str]:
    """Items of the only list with that key in a YAML file."""
    [block] = re.findall(rf"^ *{key}:\n((?: *- .*\n)+)", text, flags=re.MULTILINE)
    return [line.strip().removeprefix("- ").strip('"') for line in block.splitlines()]


def conda(requirements: list[str]) -> set[str]:
    """The same requirements with conda's names and notation."""
    split = [re.fullmatch(r"([\w.-]+)(>=.+)", line).groups() for line in requirements]
    return {f"{CONDA_NAMES.get(name, name)} {bound}" for name, bound in split}


def test_the_recipe_requires_what_the_package_requires():
    """Optional dependencies of single modules constrain versions and are not installed."""
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert value_of("python_min", RECIPE) == oldest
    extras = PROJECT["optional-dependencies"]
    assert set(items_of("run", RECIPE)) == conda(PROJECT["dependencies"]) | {"python >=${{ python_min }}"}
    assert set(items_of("run_constraints", RECIPE)) == conda(extras["plot"] + extras["save"] + extras["onnx"])
    system = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    assert set(items_of("host", RECIPE)) == conda(system["requires"]) | {"python ${{ python_min }}.*", "pip"}


def test_recipe_citation_and_package_have_the_same_name_version_and_licence():
    assert value_of("version", RECIPE.partition("package:")[0]) == sklearn_laplace.__version__
    assert value_of("version", CITATION) == sklearn_laplace.__version__
    assert value_of("title", CITATION) == sklearn_laplace.__name__
    assert PROJECT["name"] == sklearn_laplace.__name__.replace("_", "-")
    assert RECIPE.count(f"\n  name: {PROJECT['name']}\n") == 1
    assert value_of("license", RECIPE) == value_of("license", CITATION) == PROJECT["license"]
    assert value_of("summary", RECIPE) == value_of("abstract", CITATION) == PROJECT["description"]
    assert items_of("keywords", CITATION) == PROJECT["keywords"]
    assert items_of("authors", CITATION) == [f"name: {author['name']}" for author in PROJECT["authors"]]
    assert value_of("repository", RECIPE) == value_of("repository-code", CITATION) == PROJECT["urls"]["Repository"]


def test_the_citation_has_the_date_of_the_changelog():
    """Neither has a date before the release."""
    changelog = (ROOT / "docs/changelog.md").read_text(encoding="utf-8")
    version = re.escape(sklearn_laplace.__version__)
    [heading] = re.findall(rf"^## \[?{version}\b.*", changelog, flags=re.MULTILINE)
    dated = re.findall(r"\d{4}-\d{2}-\d{2}", heading)
    assert re.findall(r"^date-released: (\S+)$", CITATION, flags=re.MULTILINE) == dated


def test_every_address_is_in_the_repository_of_the_project():
    """Files, pages and forms would otherwise lead to different places after a move."""
    base = PROJECT["urls"]["Homepage"]
    config = (ROOT / ".github/ISSUE_TEMPLATE/config.yml").read_text(encoding="utf-8")
    addresses = [*PROJECT["urls"].values(), *re.findall(r"https://[^\s\"]+", RECIPE + CITATION + config)]
    assert len(addresses) > 10 and all(address.startswith(base) for address in addresses), addresses


def test_the_newest_python_of_the_workflow_is_the_newest_that_the_package_names():
    classifiers = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    tested = re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", WORKFLOWS["tests"])[1])
    assert tested == classifiers and classifiers[0] == PROJECT["requires-python"].removeprefix(">=")


def scripts_of(workflow: str) -> set[str]:
    """Names of the scripts that a workflow runs, also by a matrix."""
    matrix = re.search(r"script: \[(.*)\]", workflow)
    return set(re.findall(r"run: \.ci/(\w+)", workflow)) | set(matrix[1].split(", ") if matrix else [])


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_a_workflow_runs_only_scripts_that_everybody_can_run(name):
    """Each command is a script of ``.ci``, so that nothing is checked on the server alone."""
    commands = re.findall(r"^ *(?:- )?run: +(.*)$", WORKFLOWS[name], flags=re.MULTILINE)
    assert commands and all(command.startswith(".ci/") for command in commands), commands
    assert scripts_of(WORKFLOWS[name]) <= SCRIPTS.keys()
    assert "\npermissions:\n  contents: read\n" in WORKFLOWS[name]


def test_run_and_the_workflows_run_every_script():
    """Only ``nightly`` is not part of ``run``, since next versions of other projects may break it."""
    assert set().union(*map(scripts_of, WORKFLOWS.values())) == SCRIPTS.keys() - {"run"}
    text = SCRIPTS["run"].read_text(encoding="utf-8")
    [scripts] = re.findall(r"^printf '%s\\n' (.*) \| xargs", text, flags=re.MULTILINE)
    called = scripts.replace('"', "").split()
    called += " ".join(re.findall(r'"one ([\w ]+)" >', text)).split()
    called += re.findall(r'bash "\$checkout/\.ci/(\w+)"', text)
    assert sorted(called) == sorted(SCRIPTS.keys() - {"run", "nightly"})


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_is_executable_and_starts_with_a_copy(name):
    """A clone has the permissions of the index, also if it was made on another system."""
    text = SCRIPTS[name].read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n# ") and 'source "$(dirname "$0")/_copy"\n' in text
    assert SCRIPTS[name].stat().st_mode & 0o111 or os.name == "nt"


def test_the_slow_tests_exist():
    """A renamed test would be run with the others again; ``tests/support/slow.py`` writes the list."""
    for line in slow.listed():
        path, _, test = line.partition("::")
        assert re.search(
            rf"^def {re.escape(test.partition('[')[0])}\(", (ROOT / path).read_text(encoding="utf-8"), re.M
        ), line


def test_the_list_of_slow_tests_is_read_from_durations():
    text = "2.51s setup    tests/a.py::test_b\n1.00s call     tests/a.py::test_c[x y]\n0.99s call     tests/a.py::d\n"
    assert slow.slow_tests(text) == ["tests/a.py::test_c[x y]"]


def test_developing_lists_every_script():
    text = (ROOT / "docs/developing.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `\.ci/(\w+)`", text, flags=re.MULTILINE)) == SCRIPTS.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_of_the_pages_for_contributors_lead_somewhere(page):
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not target.startswith("https:")]
    for target in targets:
        path, _, anchor = target.partition("#")
        linked = page.parent / path
        assert linked.is_file(), target
        headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}, target
    assert targets or page.stem in {"CODE_OF_CONDUCT", "PULL_REQUEST_TEMPLATE"}


def test_paths_and_commands_of_the_contributors_page_exist():
    text = (ROOT / ".github/CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"(?<![\w./])((?:tests|docs|examples|sklearn_laplace|\.ci|\.github)/[\w./-]+)", text))
    missing = {path for path in paths if not (ROOT / path).exists()}
    assert len(paths) > 8 and missing == {"sklearn_laplace/laplace/structures/NAME.py"}
    assert "torch==2.13.0" in text and "torch==2.13.0" in (ROOT / "README.md").read_text(encoding="utf-8")

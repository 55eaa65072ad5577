"""Checks of alerting rules: their tests with promtool, their annotations, their runbooks and their metrics."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.prometheus import ROOT, program

RUNBOOKS = ROOT / "docs" / "runbooks"
CHART = ROOT / "helm" / "endpointslice-hub"
Rule = dict[str, Any]


def rules(file: Path) -> list[Rule]:
    """The rules of a rules file."""
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


@dataclass(frozen=True)
class Case:
    """The time series of a test, with one value per minute.

    Attributes:
        alert: the alert's name without the common prefix.
        series: name and labels -> values in promtool's notation. Words in the labels stand for
            the labels of a replica, see :func:`promtool`.
        quiet: minutes before it fires, at which it must not fire.
        fires: a minute at which it must fire.
        over: a minute at which it must have stopped.
        labels: its labels besides severity and job; one dict for each alert that fires.
    """

    alert: str
    series: dict[str, str]
    quiet: tuple[int, ...]
    fires: int
    over: int
    labels: tuple[dict[str, str], ...] = ({},)
    job: bool = True


def promtool(
    alerts: Sequence[Rule], case: Case, folder: Path, *, name: str, metrics: str, replicas: Mapping[str, str], job: str
) -> None:
    """Test a case with promtool. After the end of a series, its last value counts for five more minutes.

    Args:
        alerts: all rules of the file.
        case: the series, and when the alert fires.
        folder: for promtool's files.
        name: the common prefix of the alerts.
        metrics: the common prefix of the metrics.
        replicas: word in a case's labels -> the labels that it stands for.
        job: the label ``job`` that the alerts have, if the case says so.
    """
    rule = next(rule for rule in alerts if rule["alert"] == name + case.alert)
    common = {**rule["labels"], **({"job": job} if case.job else {})}

    def expected(minute: int, *labels: dict[str, str]) -> dict[str, Any]:
        made = [{"exp_labels": {**common, **alert_labels}} for alert_labels in labels]
        return {"eval_time": f"{minute}m", "alertname": name + case.alert, "exp_alerts": made}

    def series(text: str) -> str:
        for word, labels in replicas.items():
            text = text.replace(word, labels)
        return metrics + text

    test = {
        "interval": "1m",
        "input_series": [{"series": series(text), "values": values} for text, values in case.series.items()],
        "alert_rule_test": [
            *(expected(minute) for minute in case.quiet),
            expected(case.fires, *case.labels),
            expected(case.over),
        ],
    }
    bare = [{**each, "annotations": {}} for each in alerts]  # promtool would compare the texts, which other tests check
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": bare}]}))
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]}))
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check_annotations(rule: Rule) -> None:
    """A rule has a summary, a description, and the absolute URL of its runbook, which the index lists."""
    assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()
    [repository] = yaml.safe_load((CHART / "Chart.yaml").read_text())["sources"]
    default = yaml.safe_load((CHART / "values.yaml").read_text())["metrics"]["prometheusRule"]["runbookUrl"]
    assert default == f"{repository}/blob/main/{RUNBOOKS.relative_to(ROOT)}"
    assert rule["annotations"]["runbook_url"] == f"{default}/{rule['alert']}.md"
    assert f"({rule['alert']}.md)" in (RUNBOOKS / "index.md").read_text()


def check_runbook(rule: Rule) -> None:
    """A runbook has the sections of all runbooks, the rule's PromQL, and at least two causes with commands."""
    head, *parts = re.split(r"^## (.*)\n", (RUNBOOKS / f"{rule['alert']}.md").read_text(), flags=re.MULTILINE)
    form = re.fullmatch(rf"# {rule['alert']}\n\n```sh\n(.*?)```\n\n```text\n(.*?)```\n\n", head, re.DOTALL)
    assert form is not None
    lines = form[1].splitlines()
    assert 2 <= len(lines) <= 4
    assert {line.partition(" ")[0] for line in lines} <= {"kubectl", "helm"}
    assert parts[::2] == [
        "What it means",
        "What users notice",
        "The PromQL behind it",
        "What to do",
        "How to see that it worked",
    ]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert sections["The PromQL behind it"].strip() == f"```promql\n{rule['expr'].strip()}\n```"
    causes = re.split(r"^- ", sections["What to do"], flags=re.MULTILINE)[1:]
    assert len(causes) >= 2
    assert [cause for cause in causes if not re.search(r"^  ```sh\n(?:  .*\n)+  ```\s*\Z", cause, re.MULTILINE)] == []


def check_metrics(rule: Rule, prefix: str, known: Mapping[str, set[str]]) -> None:
    """Every metric of the expression is known, with the labels by which it is selected and aggregated.

    Args:
        rule: the rule.
        prefix: the common prefix of the metrics.
        known: metric -> its labels, with ``le`` of a histogram.
    """
    selectors = re.findall(rf"({prefix}\w+)(?:\{{([^}}]*)\}})?", rule["expr"])
    assert selectors
    for name, labels in selectors:
        has = known[name] if name in known else known[re.sub(r"_(bucket|count|sum)$", "", name)]
        assert set(re.findall(r"(\w+)(?:=~|!=|=)", labels)) <= has, name

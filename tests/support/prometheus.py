"""Debian's prometheus and promtool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "helm" / "endpointslice-hub" / "files" / "alerts.yaml"
ALLOCATION_ALERTS = ALERTS.with_name("alerts-allocations.yaml")
CLOUD_ALERTS = ALERTS.with_name("alerts-cloud.yaml")


def program(name: str) -> str:
    """The path of a program. Without it the test is skipped, or fails in CI."""
    found = shutil.which(name)
    if found is not None:
        return found
    if os.environ.get("CI"):
        pytest.fail(f"CI has no {name}: run make deps as root", pytrace=False)
    pytest.skip(f"NO {name.upper()}, NOT TESTED: make deps as root installs it on Debian")


class Prometheus:
    """A Prometheus that scrapes one address every second; a context manager.

    Args:
        folder: for its data.
        target: ``host:port`` to scrape.
        port: its own port, on loopback.
        job: the label ``job`` of what it scrapes.
        rules: files with alerting rules.
    """

    JOB = "endpointslice-hub"

    def __init__(
        self, folder: Path, target: str, port: int, *, job: str = JOB, rules: Sequence[Path] = (ALERTS,)
    ) -> None:
        self._program = program("prometheus")
        self._folder = folder
        self._url = f"http://127.0.0.1:{port}"
        self._port = port
        self._child: subprocess.Popen[bytes] | None = None
        self.log = folder / "prometheus.log"
        self._config = folder / "prometheus.yaml"
        scrape = {"job_name": job, "static_configs": [{"targets": [target]}]}
        self._config.write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(file) for file in rules],
                    "scrape_configs": [scrape],
                }
            )
        )

    def __enter__(self) -> Self:
        argv = [self._program, f"--config.file={self._config}", f"--storage.tsdb.path={self._folder / 'data'}"]
        with self.log.open("wb") as log:
            self._child = subprocess.Popen(
                [*argv, f"--web.listen-address=127.0.0.1:{self._port}"], stdout=log, stderr=log, cwd=self._folder
            )
        eventually(self.ready, 20)
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait(10)

    def ready(self) -> bool:
        """Whether it answers queries."""
        assert self._child is not None
        assert self._child.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an instant query: ``metric`` (labels) and ``value``."""
        return list(self._ask("query", query=expression)["result"])

    def series(self, expression: str) -> list[dict[str, Any]]:
        """Like :meth:`query`, but wait until there are series: a busy machine may miss a scrape."""

        def asked() -> list[dict[str, Any]]:
            found = self.query(expression)
            assert found, f"nothing for {expression}"
            return found

        return eventually(asked, 20)

    def faulty_rules(self) -> list[str]:
        """Rules that cannot be evaluated, with their errors; they have all been evaluated when this returns."""

        def asked() -> list[dict[str, Any]]:
            found = [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]
            assert found, "no rules"
            assert all(rule["health"] != "unknown" for rule in found)
            return found

        return [f"{rule['name']}: {rule.get('lastError')}" for rule in eventually(asked, 20) if rule["health"] != "ok"]

    def firing(self) -> dict[str, str]:
        """Pending and firing alerts, with their states."""
        return {alert["labels"]["alertname"]: alert["state"] for alert in self._ask("alerts")["alerts"]}

    def _ask(self, path: str, **parameters: str) -> dict[str, Any]:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        return dict(found["data"])

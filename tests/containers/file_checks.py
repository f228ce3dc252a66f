"""Checks of files that can not be run here, without a cluster, systemd and a registry."""

from __future__ import annotations

import re
from pathlib import Path

from .engine import ROOT
from .outcome import Outcomes
from .tools import call, need, promtool

__all__ = ["check_files"]

_UNIT = ROOT / "packaging" / "systemd" / "headrace.service"
#: As systemd counts exposure: 0 is best, 10 worst.
_MOST_EXPOSED = 2.5


def check_files(outcomes: Outcomes, scratch: Path) -> None:
    outcomes.validated("Dockerfiles, by hadolint", _dockerfiles)
    outcomes.validated("Kubernetes, by kustomize and its schemas", lambda: _kubernetes(scratch))
    outcomes.validated("systemd unit, by systemd-analyze", lambda: _unit(scratch))
    outcomes.validated("Prometheus, by promtool", lambda: _prometheus(scratch))


def _dockerfiles() -> str:
    files = sorted((ROOT / "docker").glob("*.Dockerfile"))
    call(need("hadolint", "pip install '.[containers]'"), *files)
    return f"{len(files)} files, nothing to say"


def _kubernetes(scratch: Path) -> str:
    validate = need("kubernetes-validate", "pip install '.[containers]'")
    whole = scratch / "kubernetes.yaml"
    passed: list[str] = []
    for folder, least in (("kubernetes", 4), ("kubernetes-shares", 5)):
        whole.write_text(call(need("kubectl"), "kustomize", ROOT / "packaging" / folder).stdout)
        said = call(validate, "--strict", whole)
        found = re.findall(r"passed for resource (\S+)", said.stdout + said.stderr)
        assert len(found) >= least, said.stdout + said.stderr
        passed += found
    return f"{len(passed)} objects: {', '.join(name.split('/')[0] for name in passed)}"


def _unit(scratch: Path) -> str:
    analyze = need("systemd-analyze")
    # The program of the unit is not installed where this runs.
    copy = scratch / _UNIT.name
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", _UNIT.read_text(), flags=re.M))
    said = call(analyze, "verify", copy)
    assert not said.stderr.strip(), said.stderr
    level = call(analyze, "security", "--offline=true", "--no-pager", _UNIT, code=None).stdout
    match = re.search(r"exposure level for headrace.service: ([\d.]+)", level)
    assert match and float(match[1]) <= _MOST_EXPOSED, level[-300:]
    return f"exposure {match[1]} of 10"


def _prometheus(scratch: Path) -> str:
    tool = promtool(scratch)
    said = call(tool, "check", "config", ROOT / "docker" / "observe" / "prometheus.yml").stdout
    assert "SUCCESS" in said, said
    return "its configuration is valid"
